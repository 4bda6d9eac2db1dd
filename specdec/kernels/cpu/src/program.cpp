// A step as a list of ops: every thread walks the list and does its share of each op.
//
// The list is made once; what changes from step to step comes in a `Step`. Rows are cut among threads where each row
// is a matter of its own, panels of outputs in products, tasks in attention.
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
enum Code : i64 { LINEAR = 0, EMBED, RMS_NORM, ROTATE, GATE, ADD, SCALE, WRITE_KV, ATTEND, COPY };

// The inputs that attention looks at, of those of a step.
enum Input : i64 { POSITIONS = 1, SLOTS, QUERY_START, SEQ_LENS, COMMITTED, TABLES, MASKS };

struct Step {
    i64 tokens, rows, max_blocks;
    u8* arena;
    void* inputs[64];
};

inline constexpr i64 FEW_ROWS = 16;             // rows that every thread rewrites for itself before a product
inline constexpr i64 MOST_PARTIALS = 1 << 16;   // results of chunks kept at once

bool is_rowwise(i64 code) { return code != LINEAR && code != ATTEND; }

struct Share {
    i64 first, last;
};
Share share(i64 count, int index, int threads) { return {count * index / threads, count * (index + 1) / threads}; }

// What one backend owns: threads and their memory. One call at a time.
struct Context {
    explicit Context(int threads) : pool(threads), buffers(static_cast<size_t>(threads)), workers(buffers.size()) {}

    Pool pool;
    std::mutex mutex;
    std::vector<Rows> buffers;
    std::vector<AttentionWorker> workers;
    Rows shared;
    std::vector<AttentionPlan> plans;
    std::vector<Partial> partials;
    std::vector<float> sums;
    std::unique_ptr<std::atomic<i64>[]> counters;
    i64 num_counters = 0;
};

class Execution {
  public:
    Execution(Context& context, const Op* ops, i64 count, const Step& step)
        : context_(context), ops_(ops), count_(count), step_(step) {
        rows_ = {step.rows, step.max_blocks, input<i32>(QUERY_START), input<i32>(SEQ_LENS), input<i32>(COMMITTED),
                 input<i32>(TABLES), input<i64>(POSITIONS), input<u64>(MASKS)};
        prepare();
    }

    void run(int index) {
        for (i64 i = 0; i < count_; i++) {
            if (i > 0 && !(is_rowwise(ops_[i].code) && is_rowwise(ops_[i - 1].code))) context_.pool.barrier().wait();
            execute(ops_[i], i, index);
        }
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
        if (context_.num_counters < count_) {
            context_.counters = std::make_unique<std::atomic<i64>[]>(static_cast<size_t>(count_));
            context_.num_counters = count_;
        }
        context_.plans.clear();
        for (i64 i = 0; i < count_; i++) {
            const Op& op = ops_[i];
            if (op.code == LINEAR && step_.tokens > FEW_ROWS)
                context_.shared.reserve(op.sizes[0], op.sizes[1], step_.tokens);
            if (op.code != ATTEND) continue;
            context_.counters[static_cast<size_t>(i)].store(0, std::memory_order_relaxed);
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
    }

    const AttentionPlan* plan_of(const Op& op) const {
        for (const auto& plan : context_.plans)
            if (plan.kv_heads == op.sizes[1] && plan.repeats == op.sizes[0] / op.sizes[1]) return &plan;
        return nullptr;
    }

    void execute(const Op& op, i64 number, int index) {
        const Share mine = share(step_.tokens, index, context_.pool.size());
        switch (op.code) {
            case LINEAR: return linear(op, index);
            case ATTEND: return attend(op, number, index);
            case EMBED: return embed(op, mine);
            case RMS_NORM: return norm(op, mine);
            case ROTATE: return turn(op, mine);
            case WRITE_KV: return write(op, mine);
            default: return elementwise(op, mine);
        }
    }

    // sizes: kind, inputs, outputs, stride of x, stride of out
    void linear(const Op& op, int index) {
        const i64 kind = op.sizes[0], inputs = op.sizes[1], stride = op.sizes[3], tokens = step_.tokens;
        const float* x = operand<float>(op, 0);
        const bool few = tokens <= FEW_ROWS;
        Rows& rows = few ? context_.buffers[static_cast<size_t>(index)] : context_.shared;
        const Share mine = few ? Share{0, tokens} : share(tokens, index, context_.pool.size());
        if (few) rows.reserve(kind, inputs, tokens);
        rows.fill(kind, inputs, tokens, mine.first, mine.last, x, stride);
        if (!few) context_.pool.barrier().wait();
        const Product product{kind, inputs, op.sizes[2], operand<u8>(op, 1), operand<float>(op, 2), operand<float>(op, 3),
                              op.sizes[4]};
        const Share panels = share((op.sizes[2] + PANEL - 1) / PANEL, index, context_.pool.size());
        multiply(product, rows, tokens, panels.first, panels.last);
    }

    // sizes: heads, kv heads, head size, block size, cached, window, first entry, stride of q, stride of out
    void attend(const Op& op, i64 number, int index) {
        Attention attention{op.sizes[0], op.sizes[1], op.sizes[2], op.sizes[3], op.sizes[4], op.sizes[5], op.sizes[6],
                            static_cast<float>(op.numbers[0]), static_cast<float>(op.numbers[1]), operand<float>(op, 0),
                            op.sizes[7], operand<u8>(op, 1), operand<u8>(op, 2), operand<float>(op, 3), op.sizes[8]};
        const AttentionPlan& plan = *plan_of(op);
        AttentionWorker& worker = context_.workers[static_cast<size_t>(index)];
        auto& next = context_.counters[static_cast<size_t>(number)];
        const auto claim = [&] {
            const i64 t = next.fetch_add(1, std::memory_order_relaxed);
            return t < static_cast<i64>(plan.tasks.size()) ? plan.tasks.data() + t : nullptr;
        };
        // One ahead, so that the worker can ask for the memory that comes next.
        for (const AttentionTask *task = claim(), *after = nullptr; task; task = after) {
            after = claim();
            worker.run(attention, rows_, *task, after, context_.partials.data(), context_.sums.data());
        }
        if (plan.folds.empty()) return;
        context_.pool.barrier().wait();
        i64 turn = 0;
        for (const auto& f : plan.folds)
            for (i64 i = 0; i < (f.last - f.first) * plan.repeats; i++)
                if (turn++ % context_.pool.size() == index)
                    worker.fold_pair(attention, f, i, context_.partials.data(), context_.sums.data());
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
            } else if (op.code == SCALE) {
                const float factor = static_cast<float>(op.numbers[0]);
                for (i64 i = 0; i < size; i++) out[i] = a[i] * factor;
            } else {
                std::copy(a, a + size, out);
            }
        }
    }

    Context& context_;
    const Op* ops_;
    const i64 count_;
    const Step& step_;
    StepRows rows_{};
};

// The first place of the largest of `count` numbers; a NaN counts as the largest.
i64 first_largest(const float* x, i64 count) {
    float best[LANES];
    i64 i = 0;
    float largest = x[0];
    if (count >= LANES) {
        for (int l = 0; l < LANES; l++) best[l] = x[l];
        bool sound = true;
        for (i = 0; i + LANES <= count; i += LANES)
            for (int l = 0; l < LANES; l++) {
                best[l] = x[i + l] > best[l] ? x[i + l] : best[l];
                sound &= x[i + l] == x[i + l];
            }
        for (int l = 0; l < LANES; l++) largest = best[l] > largest ? best[l] : largest;
        if (!sound) i = 0;
    }
    for (; i < count; i++) {
        if (x[i] != x[i]) return std::find_if(x, x + count, [](float v) { return v != v; }) - x;
        largest = x[i] > largest ? x[i] : largest;
    }
    return std::find(x, x + count, largest) - x;
}

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

// 0, or 1 if memory ran out.
int specdec_run(void* opaque, const Op* ops, i64 count, const Step* step) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        Execution execution(context, ops, count, *step);
        context.pool.run([&](int index) { execution.run(index); });
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
        context.pool.run([&](int index) {
            const Share mine = share((outputs + PANEL - 1) / PANEL, index, context.pool.size());
            pack_panels(kind, inputs, outputs, {values, scales, mins}, packed, mine.first, mine.last);
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

int specdec_argmax(void* opaque, const float* x, i64 rows, i64 columns, i64 stride, i64* out) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        context.pool.run([&](int index) {
            const Share mine = share(rows, index, context.pool.size());
            for (i64 r = mine.first; r < mine.last; r++) out[r] = first_largest(x + r * stride, columns);
        });
    });
}

// Read `bytes` bytes, each thread a share of its own, as fast as the machine goes.
int specdec_read(void* opaque, const u8* memory, i64 bytes, u64* sum) {
    auto& context = *static_cast<Context*>(opaque);
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(context.mutex);
        std::atomic<u64> total{0};
        context.pool.run([&](int index) {
            const Share mine = share(bytes / 64, index, context.pool.size());
            const u64* at = reinterpret_cast<const u64*>(memory);
            u64 sums[8] = {};
            for (i64 i = mine.first; i < mine.last; i++) {
                __builtin_prefetch(at + 8 * i + 256);
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
