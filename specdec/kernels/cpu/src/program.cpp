// A step as a list of ops, run as phases of a pool's job.
//
// The list is made once; what changes from step to step comes in a `Step`. A phase is one op, a stretch of ops whose
// every row is a matter of its own, or a part of an op. Its work is cut into pieces: of rows, of panels of outputs in
// products, of tasks in attention. No number depends on where the cuts are.
#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "pool.h"
#include "rowwise.h"
#include "sampling.h"

namespace specdec {
namespace {

// Where an operand lies: at an address, in the step's arena (`at` bytes a row of the step, then `offset`), or at an
// input of the step (`at`, then `offset`).
struct Operand {
    i64 space, at, offset;
};
enum Space : i64 { ABSENT = 0, FIXED = 1, ARENA = 2, INPUT = 3 };

struct Op {
    i64 code;
    Operand operands[8];
    i64 sizes[12];
    double numbers[4];
};
enum Code : i64 { LINEAR = 0, EMBED, RMS_NORM, ROTATE, GATE, ADD, SCALE, WRITE_KV, ATTEND, LARGEST };

// The inputs that attention looks at, of those of a step.
enum Input : i64 { POSITIONS = 1, SLOTS, QUERY_START, SEQ_LENS, COMMITTED, TABLES, MASKS };

struct Step {
    i64 tokens, rows, max_blocks;
    u8* arena;
    void* inputs[512];
};

inline constexpr i64 FEW_ROWS = 16;            // rows that every thread rewrites for itself before a product
inline constexpr i64 LEAST_PANELS = 8;         // taken at once, twice as many as one row is multiplied with
inline constexpr i64 MOST_PARTIALS = 1 << 16;  // results of chunks kept at once
inline constexpr i64 READ_LINES = 1 << 12;     // of 64 bytes, read at once
inline constexpr i64 FETCHED = 1 << 18;        // bytes of the next product's weights that are asked for before it starts
inline constexpr int FETCHED_AT_ONCE = 32;     // lines of 64 bytes, as many as memory takes without making a thread wait

struct Share {
    i64 first, last;
};

// `count` items cut into the shares of threads, and every share into pieces, each half of what is left: large ones as
// long as nobody is waiting, for taking one is not free, and at the end small ones, for which somebody may be.
// They are multiples of `grain` and the rest of the division; the last takes what is left, which may be nothing.
struct Cut {
    Cut(i64 total, i64 threads, i64 least) : count(total), owners(std::clamp<i64>(total, 1, threads)), grain(least) {
        const i64 share = (count + owners - 1) / owners;
        most = std::max(16 * grain, round_up((share + 31) / 32, grain));
        for (i64 left = share; left > 0; left -= next(left)) pieces_each++;
    }

    u32 pieces() const { return static_cast<u32>(owners * pieces_each); }

    Share share(i64 owner) const { return {count * owner / owners, count * (owner + 1) / owners}; }

    Share piece(u32 index) const {
        auto [first, last] = share(index / pieces_each);
        const i64 turn = index % pieces_each;
        for (i64 i = 0; i < turn; i++) first += next(last - first);
        return {first, turn + 1 == pieces_each ? last : first + next(last - first)};
    }

    i64 next(i64 left) const {
        const i64 size = std::min(most, round_up((left + 1) / 2, grain));
        return left - size < grain ? left : size;
    }

    i64 count, owners, grain, most, pieces_each = 0;
};

// The weights that a thread begins the next product with. They are asked for while memory has nothing else to do.
struct Ahead {
    const u8* from = nullptr;
    i64 lines = 0;

    bool fetch() {
        if (lines == 0) return false;
        __builtin_prefetch(from, 0, 2);
        from += 64, lines--;
        return true;
    }
};

// What a thread needs of its own.
struct alignas(64) Own {
    i64 product = -1;  // the last op that it took panels of
    Rows rows;         // of that, where each thread rewrites them
    Ahead ahead;       // of the product after that
    AttentionWorker attention;
};

// What one backend owns: threads and their memory. One call at a time.
struct Context {
    explicit Context(int threads)
        : own(static_cast<size_t>(threads)),
          pool(threads, [this](int thread) { return own[static_cast<size_t>(thread)].ahead.fetch(); }) {}

    std::mutex mutex;
    std::vector<Own> own;
    Rows shared;
    std::vector<AttentionPlan> plans;
    std::vector<Partial> partials;
    std::vector<float> sums;
    std::vector<Candidate> candidates;  // room for a row's, for each thread
    Pool pool;  // goes first: its threads use the others
};

// One phase of a job, f(thread, first, last) for every piece of `count` items.
template <class F>
void each_piece(Pool& pool, i64 count, i64 grain, F f) {
    const Cut cut(count, pool.size(), grain);
    pool.run({{cut.pieces()}, [&](int thread, size_t, u32 index) {
                  const Share piece = cut.piece(index);
                  f(thread, piece.first, piece.last);
              }});
}

class Execution {
    enum class Part { ROWS, PRODUCT, ATTEND, FOLD };

    // The ops [first, last) row by row, or a part of op `first`.
    struct Phase {
        Part part;
        i64 first, last;
        Cut cut;
    };

  public:
    Execution(Context& context, const Op* ops, i64 count, const Step& step)
        : context_(context), ops_(ops), count_(count), step_(step) {
        rows_ = {step.rows, step.max_blocks, input<i32>(QUERY_START), input<i32>(SEQ_LENS), input<i32>(COMMITTED),
                 input<i32>(TABLES), input<i64>(POSITIONS), input<u64>(MASKS)};
        prepare();
    }

    void run() {
        context_.pool.run({std::move(pieces_),
                           [this](int thread, size_t phase, u32 piece) { perform(thread, phase, piece); }});
    }

  private:
    template <class T>
    T* input(i64 which) const {
        return static_cast<T*>(step_.inputs[which]);
    }

    template <class T>
    T* operand(const Op& op, int which) const {
        const Operand& o = op.operands[which];
        if (o.space == ABSENT) return nullptr;
        if (o.space == FIXED) return reinterpret_cast<T*>(o.at);
        if (o.space == INPUT) return reinterpret_cast<T*>(static_cast<u8*>(step_.inputs[o.at]) + o.offset);
        return reinterpret_cast<T*>(step_.arena + o.at * step_.tokens + o.offset);
    }

    // What the threads share is allocated before they start; what is each thread's own, when it first needs it.
    void prepare() {
        context_.plans.clear();
        for (auto& own : context_.own) own.product = -1;
        for (i64 i = 0; i < count_; i++) {
            const Op& op = ops_[i];
            if (op.code == ATTEND) {
                prepare_attention(op);
                const AttentionPlan& plan = *plan_of(op);
                add_phase(Part::ATTEND, i, static_cast<i64>(plan.tasks.size()), 1);
                add_phase(Part::FOLD, i, plan.pairs, 1);
            } else if (op.code == LINEAR) {
                if (!is_few()) {
                    context_.shared.reserve(op.sizes[0], op.sizes[1], step_.tokens);
                    add_rows(i);
                }
                const i64 panels = (op.sizes[2] + PANEL - 1) / PANEL;
                add_phase(Part::PRODUCT, i, panels, LEAST_PANELS);
            } else {
                add_rows(i);
            }
        }
    }

    bool is_few() const { return step_.tokens <= FEW_ROWS; }

    // One more op that a row goes through, if it can be in one stretch with those before.
    void add_rows(i64 op) {
        if (!phases_.empty() && phases_.back().part == Part::ROWS)
            phases_.back().last = op + 1;
        else
            add_phase(Part::ROWS, op, step_.tokens, 1);
    }

    void add_phase(Part part, i64 op, i64 count, i64 grain) {
        if (count == 0) return;
        phases_.push_back({part, op, op + 1, Cut(count, context_.pool.size(), grain)});
        pieces_.push_back(phases_.back().cut.pieces());
    }

    void prepare_attention(const Op& op) {
        if (!plan_of(op)) {
            AttentionPlan plan;
            plan.build(rows_, op.sizes[0], op.sizes[1], context_.pool.size(), MOST_PARTIALS);
            context_.plans.push_back(std::move(plan));
        }
        // Two ops may share a plan and differ in the size of their heads.
        const size_t kept = static_cast<size_t>(plan_of(op)->partials);
        if (context_.partials.size() < kept) context_.partials.resize(kept);
        const size_t floats = kept * static_cast<size_t>(round_up(op.sizes[2], LANES));
        if (context_.sums.size() < floats) context_.sums.resize(floats);
    }

    const AttentionPlan* plan_of(const Op& op) const {
        for (const auto& plan : context_.plans)
            if (plan.kv_heads == op.sizes[1] && plan.repeats == op.sizes[0] / op.sizes[1]) return &plan;
        return nullptr;
    }

    void perform(int thread, size_t number, u32 index) {
        const Phase& phase = phases_[number];
        Own& own = context_.own[static_cast<size_t>(thread)];
        const Share piece = phase.cut.piece(index);
        if (piece.first == piece.last) return;
        if (phase.part == Part::PRODUCT && own.product != phase.first) {
            own.product = phase.first, own.ahead = next_weights(thread, number);
            if (is_few()) rewrite_rows(ops_[phase.first], own);
        }
        // Other ops read little, and leave memory idle while they compute.
        if (phase.part != Part::PRODUCT)
            for (int i = 0; i < FETCHED_AT_ONCE; i++) own.ahead.fetch();
        perform(phase, own, piece);
    }

    void perform(const Phase& phase, Own& own, Share piece) {
        switch (phase.part) {
            case Part::PRODUCT: return multiply_panels(ops_[phase.first], own, piece);
            case Part::ATTEND: return attend(ops_[phase.first], own.attention, piece);
            case Part::FOLD: return fold(ops_[phase.first], own.attention, piece);
            case Part::ROWS:
                for (i64 i = phase.first; i < phase.last; i++) rowwise(ops_[i], piece);
        }
    }

    void rowwise(const Op& op, Share mine) {
        switch (op.code) {
            case LINEAR: return fill_rows(op, context_.shared, mine);
            case EMBED: return embed(op, mine);
            case RMS_NORM: return norm(op, mine);
            case ROTATE: return turn(op, mine);
            case WRITE_KV: return write(op, mine);
            case LARGEST: return largest(op, mine);
            default: return elementwise(op, mine);
        }
    }

    // Of the product that comes after phase `number`.
    Ahead next_weights(int thread, size_t number) const {
        while (++number < phases_.size() && phases_[number].part != Part::PRODUCT) {}
        if (number == phases_.size() || thread >= phases_[number].cut.owners) return {};
        const Op& op = ops_[phases_[number].first];
        const Share panels = phases_[number].cut.share(thread);
        const i64 bytes = panel_bytes(op.sizes[0], op.sizes[1]);
        return {operand<u8>(op, 1) + panels.first * bytes, std::min(FETCHED, (panels.last - panels.first) * bytes) / 64};
    }

    void fill_rows(const Op& op, Rows& rows, Share mine) {
        rows.fill(op.sizes[0], op.sizes[1], step_.tokens, mine.first, mine.last, operand<float>(op, 0), op.sizes[3]);
    }

    void rewrite_rows(const Op& op, Own& own) {
        own.rows.reserve(op.sizes[0], op.sizes[1], step_.tokens);
        fill_rows(op, own.rows, {0, step_.tokens});
    }

    // sizes: kind, inputs, outputs, stride of x, stride of out
    void multiply_panels(const Op& op, const Own& own, Share panels) {
        const Product product{op.sizes[0], op.sizes[1], op.sizes[2], operand<u8>(op, 1), operand<float>(op, 2),
                              operand<float>(op, 3), op.sizes[4]};
        multiply(product, is_few() ? own.rows : context_.shared, step_.tokens, panels.first, panels.last);
    }

    // sizes: heads, kv heads, head size, block size, cached, window, first entry, stride of q, stride of out
    Attention attention_of(const Op& op) const {
        return {op.sizes[0], op.sizes[1], op.sizes[2], op.sizes[3], op.sizes[4], op.sizes[5], op.sizes[6],
                static_cast<float>(op.numbers[0]), static_cast<float>(op.numbers[1]), operand<float>(op, 0),
                op.sizes[7], operand<u8>(op, 1), operand<u8>(op, 2), operand<float>(op, 3), op.sizes[8]};
    }

    void attend(const Op& op, AttentionWorker& worker, Share tasks) {
        const AttentionPlan& plan = *plan_of(op);
        const AttentionTask* task = plan.tasks.data() + tasks.first;
        const AttentionTask* const end = plan.tasks.data() + tasks.last;
        const Attention attention = attention_of(op);
        for (; task < end; task++)  // the worker asks for the memory of the task after
            worker.run(attention, rows_, *task, task + 1 < end ? task + 1 : nullptr, context_.partials.data(),
                       context_.sums.data());
    }

    // The pairs of all folds in one row.
    void fold(const Op& op, AttentionWorker& worker, Share pairs) {
        const AttentionPlan& plan = *plan_of(op);
        i64 start = 0;
        for (const auto& f : plan.folds) {
            const i64 end = start + (f.last - f.first) * plan.repeats;
            for (i64 i = std::max(start, pairs.first); i < std::min(end, pairs.last); i++)
                worker.fold_pair(attention_of(op), f, i - start, context_.partials.data(), context_.sums.data());
            start = end;
        }
    }

    // sizes: kind, hidden size, outputs, stride of out
    void embed(const Op& op, Share mine) {
        const i64* ids = operand<i64>(op, 0);
        float* out = operand<float>(op, 2);
        for (i64 t = mine.first; t < mine.last; t++)
            unpack_row(op.sizes[0], op.sizes[1], operand<u8>(op, 1), ids[t], out + t * op.sizes[3]);
    }

    // sizes: vectors a row, size of each, stride of x, stride of out, unit offset; numbers: eps
    void norm(const Op& op, Share mine) {
        const i64 count = op.sizes[0], size = op.sizes[1];
        for (i64 t = mine.first; t < mine.last; t++)
            for (i64 h = 0; h < count; h++)
                rms_norm(operand<float>(op, 0) + t * op.sizes[2] + h * size, operand<float>(op, 1),
                         static_cast<float>(op.numbers[0]), op.sizes[4] != 0, size,
                         operand<float>(op, 2) + t * op.sizes[3] + h * size);
    }

    // sizes: heads, head size, half of the rotated part, stride of x, stride of out
    void turn(const Op& op, Share mine) {
        const i64* positions = operand<i64>(op, 3);
        const i64 half = op.sizes[2];
        for (i64 t = mine.first; t < mine.last; t++)
            rotate(operand<float>(op, 0) + t * op.sizes[3], operand<float>(op, 1) + positions[t] * half,
                   operand<float>(op, 2) + positions[t] * half, op.sizes[0], op.sizes[1], half,
                   operand<float>(op, 4) + t * op.sizes[4]);
    }

    // sizes: kv heads, head size, cached, stride of key, stride of value
    void write(const Op& op, Share mine) {
        const i64 groups = op.sizes[0], size = op.sizes[1], bytes = entry_bytes(op.sizes[2], size);
        const i64* slots = operand<i64>(op, 4);
        for (i64 t = mine.first; t < mine.last; t++)
            for (i64 g = 0; g < groups; g++) {
                const i64 at = (slots[t] * groups + g) * bytes;
                write_entry(op.sizes[2], operand<float>(op, 0) + t * op.sizes[3] + g * size, size, operand<u8>(op, 2) + at);
                write_entry(op.sizes[2], operand<float>(op, 1) + t * op.sizes[4] + g * size, size, operand<u8>(op, 3) + at);
            }
    }

    // sizes: columns, stride of x
    void largest(const Op& op, Share mine) {
        const i64 columns = op.sizes[0];
        for (i64 t = mine.first; t < mine.last; t++) {
            const float* x = operand<float>(op, 0) + t * op.sizes[1];
            const float value = operand<float>(op, 2)[t] = largest_of(x, columns);
            operand<i64>(op, 1)[t] = first_equal(x, columns, value);
        }
    }

    // sizes: size, stride of the first, of the second, of out, silu; numbers: factor
    void elementwise(const Op& op, Share mine) {
        const i64 size = op.sizes[0];
        for (i64 t = mine.first; t < mine.last; t++) {
            const float* a = operand<float>(op, 0) + t * op.sizes[1];
            float* out = operand<float>(op, 2) + t * op.sizes[3];
            if (op.code == GATE) {
                gate(a, size, op.sizes[4] != 0, out);
            } else if (op.code == ADD) {
                const float* b = operand<float>(op, 1) + t * op.sizes[2];
                for (i64 i = 0; i < size; i++) out[i] = a[i] + b[i];
            } else {
                const float factor = static_cast<float>(op.numbers[0]);
                for (i64 i = 0; i < size; i++) out[i] = a[i] * factor;
            }
        }
    }

    Context& context_;
    const Op* ops_;
    const i64 count_;
    const Step& step_;
    StepRows rows_{};
    std::vector<Phase> phases_;
    std::vector<u32> pieces_;  // of every phase
};

template <class F>
int guarded(F work) {
    try {
        work();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    } catch (const std::exception&) {
        return 2;
    }
}

// Every chunk of columns of every row, row by row within a chunk, so that a thread gets what is near to what it wrote in
// a product. `work` is told the number of its item and of the first of its piece.
template <class F>
void each_chunk(Context& context, i64 rows, i64 columns, F work) {
    each_piece(context.pool, rows * num_chunks(columns), 1, [&](int, i64 begin, i64 end) {
        for (i64 item = begin; item < end; item++) {
            const i64 first = item / rows * COLUMNS;
            work(item % rows, Share{first, std::min(first + COLUMNS, columns)}, item, begin);
        }
    });
}

}  // namespace
}  // namespace specdec

using namespace specdec;

extern "C" {

void* specdec_open(i64 threads) {
    void* context = nullptr;
    guarded([&] { context = new Context(static_cast<int>(threads)); });
    return context;
}

void specdec_close(void* context) { delete static_cast<Context*>(context); }

// 0; 1 if memory ran out, 2 if anything else went wrong.
int specdec_run(void* opaque, const Op* ops, i64 count, const Step* step) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        Execution execution(context, ops, count, *step);
        execution.run();
    });
}

i64 specdec_packed_bytes(i64 kind, i64 inputs, i64 outputs) {
    return (outputs + PANEL - 1) / PANEL * panel_bytes(kind, inputs);
}

int specdec_pack(void* opaque, i64 kind, i64 inputs, i64 outputs, const void* values, const void* scales, const void* mins,
                 u8* packed) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        each_piece(context.pool, (outputs + PANEL - 1) / PANEL, 1, [&](int, i64 first, i64 last) {
            pack_panels(kind, inputs, outputs, {values, scales, mins}, packed, first, last);
        });
    });
}

// Rows `ids` of packed weights as floats.
void specdec_unpack(i64 kind, i64 inputs, const u8* packed, const i64* ids, i64 count, float* out) {
    for (i64 i = 0; i < count; i++) unpack_row(kind, inputs, packed, ids[i], out + i * inputs);
}

// In each cache, copy the entries of `bytes` bytes at `from` to `to`; all are read before any is written.
int specdec_move(void* opaque, u8* const* caches, i64 num_caches, i64 bytes, const i64* from, const i64* to, i64 count) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        std::vector<u8> held(static_cast<size_t>(count * bytes));
        for (i64 c = 0; c < num_caches; c++) {
            for (i64 i = 0; i < count; i++)
                std::memcpy(held.data() + i * bytes, caches[c] + from[i] * bytes, static_cast<size_t>(bytes));
            for (i64 i = 0; i < count; i++)
                std::memcpy(caches[c] + to[i] * bytes, held.data() + i * bytes, static_cast<size_t>(bytes));
        }
    });
}

// Of each row the first place of the largest, and the largest itself; a NaN counts as the largest.
int specdec_largest(void* opaque, const float* x, i64 rows, i64 columns, i64 stride, i64* tokens, float* values) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        std::vector<float> tops(static_cast<size_t>(rows * num_chunks(columns)));
        each_chunk(context, rows, columns, [&](i64 row, const Share& chunk, i64 item, i64) {
            tops[static_cast<size_t>(item)] = largest_of(x + row * stride + chunk.first, chunk.last - chunk.first);
        });
        for (i64 r = 0; r < rows; r++) {
            i64 best = r;  // item r is the first chunk of row r
            const auto top = [&](i64 item) { return tops[static_cast<size_t>(item)]; };
            for (i64 i = r + rows; i < rows * num_chunks(columns); i += rows)
                if (top(best) == top(best) && !(top(i) <= top(best))) best = i;
            const i64 first = best / rows * COLUMNS;
            values[r] = top(best);
            tokens[r] = first + first_equal(x + r * stride + first, std::min(COLUMNS, columns - first), values[r]);
        }
    });
}

// The logarithm of each row's sum of e^x.
int specdec_logsumexp(void* opaque, const float* x, i64 rows, i64 columns, i64 stride, double* out) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        std::vector<Mass> masses(static_cast<size_t>(rows * num_chunks(columns)));
        each_chunk(context, rows, columns, [&](i64 row, const Share& chunk, i64 item, i64) {
            masses[static_cast<size_t>(item)] = mass_of(x + row * stride + chunk.first, chunk.last - chunk.first);
        });
        for (i64 r = 0; r < rows; r++) out[r] = log_mass(masses.data() + r, num_chunks(columns), rows);
    });
}

// For each of `draws` keys the token of row `at[i]` whose logit plus noise is highest, and that sum. Logits are doubles
// if `is_double`.
int specdec_gumbel_argmax(void* opaque, const void* x, i64 is_double, i64 columns, i64 stride, i64 draws, const i64* at,
                          const NoiseKey* keys, i64* tokens, double* scores) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        std::vector<Drawn> drawn(static_cast<size_t>(draws * num_chunks(columns)));
        each_chunk(context, draws, columns, [&](i64 d, const Share& chunk, i64 item, i64 first_item) {
            const Drawn earlier = item - draws < first_item ? Drawn() : drawn[static_cast<size_t>(item - draws)];
            const auto from = [&](const auto* row) { return draw(row, chunk.first, chunk.last, keys[d], earlier); };
            drawn[static_cast<size_t>(item)] = is_double ? from(static_cast<const double*>(x) + at[d] * stride)
                                                         : from(static_cast<const float*>(x) + at[d] * stride);
        });
        for (i64 d = 0; d < draws; d++) {
            Drawn best = drawn[static_cast<size_t>(d)];
            for (i64 i = d + draws; i < draws * num_chunks(columns); i += draws)
                if (best.score == best.score && !(drawn[static_cast<size_t>(i)].score <= best.score))
                    best = drawn[static_cast<size_t>(i)];
            tokens[d] = std::max<i64>(0, best.token);
            scores[d] = best.score;
        }
    });
}

// Each row as its filter leaves it, [rows, columns] without gaps.
int specdec_filter(void* opaque, const float* x, i64 rows, i64 columns, i64 stride, const RowFilter* filters, float* out) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        const i64 room = columns + 1;
        context.candidates.resize(static_cast<size_t>(room * context.pool.size()));
        each_piece(context.pool, rows, 1, [&](int thread, i64 first, i64 last) {
            for (i64 r = first; r < last; r++)
                filter_row(x + r * stride, columns, filters[r], context.candidates.data() + room * thread, out + r * columns);
        });
    });
}

// Read `bytes` bytes as fast as the machine goes.
int specdec_read(void* opaque, const u8* memory, i64 bytes, u64* sum) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        std::atomic<u64> total{0};
        each_piece(context.pool, bytes / 64, READ_LINES, [&](int, i64 first, i64 last) {
            const u64* at = reinterpret_cast<const u64*>(memory);
            u64 sums[8] = {};
            for (i64 i = first; i < last; i++) {
                __builtin_prefetch(at + 8 * i + AHEAD / 8, 0, 2);
                for (int j = 0; j < 8; j++) sums[j] ^= at[8 * i + j];
            }
            u64 own = 0;
            for (const u64 each : sums) own ^= each;
            total.fetch_xor(own);
        });
        *sum = total;
    });
}
}
