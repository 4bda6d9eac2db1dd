// Ragged attention over a paged cache, chunk by chunk of CHUNK positions.
//
// A query sees a sequence of its own: the committed entries up to its position, then the draft nodes that its ancestor
// mask names, closed up. Chunks are counted along that sequence, sums run through a chunk in its order, and chunks are
// folded into the result one after the other. So a query's bits depend neither on its neighbours, nor on the threads,
// nor on whether its ancestors lay scattered in a tree or in a row.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "rowwise.h"
#include "vec.h"

namespace specdec {

inline constexpr i64 CHUNK = 64;
inline constexpr i64 CHUNK_VECTORS = CHUNK / LANES;
inline constexpr i64 MAX_PAIRS = 48;  // queries times heads of one task
inline constexpr int PAIR_TILE = 6;   // pairs times four vectors of sums: 24 registers
inline constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// What varies from step to step; the fields are those of `specdec.step.Batch`.
struct StepRows {
    i64 count, max_blocks;
    const i32 *query_start, *seq_lens, *committed, *tables;
    const i64* positions;
    const u64* masks;  // or null
};

struct Attention {
    i64 heads, kv_heads, size, block_size, cached, window, first_entry;
    float scale, soft_cap;  // 0: none
    const float* query;
    i64 query_stride;
    const u8 *keys, *values;
    float* out;
    i64 out_stride;

    i64 repeats() const { return heads / kv_heads; }
    i64 padded() const { return round_up(size, LANES); }
    bool in_pairs() const { return cached == CACHED_BF16; }
    i64 words() const { return in_pairs() ? (size + 1) / 2 : size; }  // 32-bit words of a key as it is multiplied
};

// The queries [first, last) of a row with one KV head and the chunks [chunk, last_chunk). `partial` is where the
// chunks' results are kept to be folded later, -1: they are folded at once.
struct AttentionTask {
    i64 row, head, first, last, chunk, last_chunk, partial;
};

// The tasks of one step for models with `kv_heads` heads of keys.
struct AttentionPlan {
    i64 kv_heads = 0, repeats = 0;
    std::vector<AttentionTask> tasks;
    struct Fold {
        i64 row, head, first, last, chunks, partial;
    };
    std::vector<Fold> folds;
    i64 partials = 0, pairs = 0;  // results kept, and queries times heads to fold them for

    // Few tasks are cut along the context, so that every thread has some; the bits are the same.
    void build(const StepRows& rows, i64 heads, i64 groups, i64 threads, i64 most_partials) {
        kv_heads = groups, repeats = heads / groups;
        tasks.clear(), folds.clear(), partials = pairs = 0;
        const i64 tile = std::max<i64>(1, MAX_PAIRS / repeats);
        i64 whole = 0;
        for (i64 b = 0; b < rows.count; b++)
            whole += groups * ((rows.query_start[b + 1] - rows.query_start[b] + tile - 1) / tile);
        for (i64 b = 0; b < rows.count; b++) {
            const i64 chunks = (rows.seq_lens[b] + CHUNK - 1) / CHUNK;
            for (i64 q = rows.query_start[b]; q < rows.query_start[b + 1]; q += tile) {
                const i64 last = std::min<i64>(q + tile, rows.query_start[b + 1]);
                const i64 results = (last - q) * repeats * chunks;
                const bool split = threads > 1 && chunks > 1 && whole < 4 * threads && partials + groups * results <= most_partials;
                for (i64 g = 0; g < groups; g++) add(b, g, q, last, chunks, split, results, threads);
            }
        }
    }

  private:
    void add(i64 row, i64 head, i64 first, i64 last, i64 chunks, bool split, i64 results, i64 threads) {
        if (!split) {
            tasks.push_back({row, head, first, last, 0, chunks, -1});
            return;
        }
        const i64 pieces = std::min(chunks, 4 * threads);
        for (i64 i = 0; i < pieces; i++)
            tasks.push_back({row, head, first, last, chunks * i / pieces, chunks * (i + 1) / pieces, partials});
        folds.push_back({row, head, first, last, chunks, partials});
        partials += results, pairs += (last - first) * repeats;
    }
};

// The softmax of some scores, not yet divided: the largest score, the sum of weights (0: nothing was seen), and the
// weighted values.
struct Partial {
    float largest, total;
};

inline void fold(Partial& into, float* acc, const Partial& next, const float* next_acc, i64 size) {
    if (next.total == 0) return;
    const float largest = next.largest > into.largest ? next.largest : into.largest;
    const float a = exp_float(into.largest - largest), b = exp_float(next.largest - largest);
    into.largest = largest;
    into.total = into.total * a + next.total * b;
    for (i64 i = 0; i < size; i++) acc[i] = acc[i] * a + next_acc[i] * b;
}

// 16 rows of 16 words to 16 columns, `stride` words apart.
inline void transpose_words(const u32* const* rows, i64 offset, u32* out, i64 stride) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(rows[i] + offset);
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(out + i * stride, _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88));
        _mm512_storeu_si512(out + (4 + i) * stride, _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88));
        _mm512_storeu_si512(out + (8 + i) * stride, _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd));
        _mm512_storeu_si512(out + (12 + i) * stride, _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd));
    }
#else
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) out[j * stride + i] = rows[i][offset + j];
#endif
}

// One thread's memory for attention, and the arithmetic on it.
class AttentionWorker {
  public:
    // One task; results that are kept go to `partials` and `sums`, [.., padded] each.
    void run(const Attention& op, const StepRows& rows, const AttentionTask& task, Partial* partials, float* sums) {
        begin(op, rows, task);
        for (i64 c = task.chunk; c < task.last_chunk; c++) {
            attend_chunk(op, rows, task, c);
            const i64 chunks = (rows.seq_lens[task.row] + CHUNK - 1) / CHUNK;
            for (i64 i = 0; i < pairs_; i++) {
                if (task.partial < 0) {
                    fold(state_[i], acc(i), chunk_[i], chunk_acc(i), padded_);
                } else {
                    const i64 at = task.partial + i * chunks + c;
                    partials[at] = chunk_[i];
                    if (chunk_[i].total != 0)
                        std::copy(chunk_acc(i), chunk_acc(i) + padded_, sums + at * padded_);
                }
            }
        }
        if (task.partial < 0)
            for (i64 i = 0; i < pairs_; i++) finish(op, task.first + i / repeats_, head_of(op, task.head, i), i);
    }

    // Put the kept results of pair `i` of a fold together.
    void fold_pair(const Attention& op, const AttentionPlan::Fold& f, i64 i, const Partial* partials, const float* sums) {
        padded_ = op.padded(), repeats_ = op.repeats();
        reserve(op);
        state_[0] = {NOTHING, 0};
        std::fill(acc(0), acc(0) + padded_, 0.0f);
        for (i64 c = 0; c < f.chunks; c++) {
            const i64 at = f.partial + i * f.chunks + c;
            fold(state_[0], acc(0), partials[at], sums + at * padded_, padded_);
        }
        finish(op, f.first + i / repeats_, head_of(op, f.head, i), 0);
    }

  private:
    static i64 head_of(const Attention& op, i64 group, i64 pair) {
        return group * op.repeats() + pair % op.repeats();
    }
    float* acc(i64 i) { return acc_.data() + i * padded_; }
    float* chunk_acc(i64 i) { return chunk_acc_.data() + i * padded_; }
    float* weights(i64 i) { return weights_.data() + i * CHUNK; }

    void reserve(const Attention& op) {
        const size_t words = static_cast<size_t>(round_up(op.size, LANES)) + LANES;
        const auto grow = [](auto& v, size_t n) {
            if (v.size() < n) v.resize(n);
        };
        grow(keys_, words * CHUNK), grow(rows_, words * LANES);
        grow(values_, static_cast<size_t>(padded_ * CHUNK));
        grow(query_, words * MAX_LISTED), grow(weights_, static_cast<size_t>(CHUNK) * MAX_LISTED);
        grow(acc_, static_cast<size_t>(padded_) * MAX_LISTED), grow(chunk_acc_, static_cast<size_t>(padded_) * MAX_LISTED);
        grow(state_, MAX_LISTED), grow(chunk_, MAX_LISTED);
    }

    void begin(const Attention& op, const StepRows& rows, const AttentionTask& task) {
        padded_ = op.padded(), repeats_ = op.repeats(), words_ = op.words();
        query_stride_ = words_ + (words_ & 1);
        pairs_ = (task.last - task.first) * repeats_;
        reserve(op);
        lists_.resize(static_cast<size_t>(task.last - task.first));
        const i64 committed = rows.committed[task.row];
        is_shared_ = true;
        for (i64 q = task.first; q < task.last; q++) {
            const u64 mask = rows.masks ? rows.masks[q] : 0;
            const i64 position = rows.positions[q];
            const i64 seen = std::min(committed, position + 1);
            const i64 end = seen + __builtin_popcountll(mask);
            const i64 start = op.window ? std::max(op.first_entry, position - op.window + 1) : op.first_entry;
            lists_[q - task.first] = {start, end, seen, mask};
            is_shared_ &= (mask & (mask + 1)) == 0 && (mask == 0 || seen == committed);
        }
        for (i64 i = 0; i < pairs_; i++) {
            state_[i] = {NOTHING, 0};
            const float* q = op.query + (task.first + i / repeats_) * op.query_stride + head_of(op, task.head, i) * op.size;
            u32* out = query_.data() + i * query_stride_;
            if (op.in_pairs()) {
                u16* half = reinterpret_cast<u16*>(out);
                for (i64 d = 0; d < op.size; d++) half[d] = float_to_bf16(q[d]);
                if (op.size & 1) half[op.size] = 0;
            } else {
                std::memcpy(out, q, static_cast<size_t>(4 * op.size));
            }
        }
        std::fill(acc_.begin(), acc_.begin() + pairs_ * padded_, 0.0f);
    }

    // The chunk's result for every pair, in chunk_ and chunk_acc_.
    void attend_chunk(const Attention& op, const StepRows& rows, const AttentionTask& task, i64 c) {
        const i64 committed = rows.committed[task.row], base = c * CHUNK;
        for (i64 i = 0; i < pairs_; i++) chunk_[i] = {NOTHING, 0};
        if (is_shared_ || base + CHUNK <= committed) {
            attend_queries(op, rows, task, base, 0, task.last - task.first);
        } else {
            for (i64 q = 0; q < task.last - task.first; q++) attend_queries(op, rows, task, base, q, q + 1);
        }
    }

    // The same for queries [first, last) of the task, which see the same entries as far as each sees.
    void attend_queries(const Attention& op, const StepRows& rows, const AttentionTask& task, i64 base, i64 first, i64 last) {
        i64 low = CHUNK, high = 0;
        for (i64 q = first; q < last; q++) {
            const List& list = lists_[q];
            const i64 from = std::clamp<i64>(list.start - base, 0, CHUNK), to = std::clamp<i64>(list.end - base, 0, CHUNK);
            if (from < to) low = std::min(low, from), high = std::max(high, to);
        }
        if (low >= high) return;
        load_entries(op, rows, task, base, low, high, lists_[last - 1]);
        for (i64 i = first * repeats_; i < last * repeats_;) {
            const i64 count = std::min<i64>(PAIR_TILE, last * repeats_ - i);
            switch (count) {
                case 1: tile<1>(op, base, i); break;
                case 2: tile<2>(op, base, i); break;
                case 3: tile<3>(op, base, i); break;
                case 4: tile<4>(op, base, i); break;
                case 5: tile<5>(op, base, i); break;
                default: tile<PAIR_TILE>(op, base, i);
            }
            i += count;
        }
    }

    struct List {
        i64 start, end, committed;
        u64 mask;
    };

    // Keys as columns and values as rows of floats, for the places [low, high) of the chunk.
    void load_entries(const Attention& op, const StepRows& rows, const AttentionTask& task, i64 base, i64 low, i64 high,
                      const List& list) {
        const i64 bytes = entry_bytes(op.cached, op.size), committed = rows.committed[task.row];
        const i32* table = rows.tables + task.row * rows.max_blocks;
        const u8 *keys[CHUNK], *values[CHUNK];
        u64 mask = list.mask;
        for (i64 skipped = list.committed; skipped < base + low && mask; skipped++) mask &= mask - 1;
        for (i64 j = low; j < high; j++) {
            i64 entry = base + j;
            if (entry >= list.committed && !is_shared_) {
                entry = committed + __builtin_ctzll(mask);
                mask &= mask - 1;
            }
            const i64 slot = table[entry / op.block_size] * op.block_size + entry % op.block_size;
            const i64 at = (slot * op.kv_heads + task.head) * bytes;
            keys[j] = op.keys + at, values[j] = op.values + at;
        }
        for (i64 j = low; j < high; j++) {
            float* out = values_.data() + j * padded_;
            read_entry(op.cached, values[j], op.size, out);
            for (i64 d = op.size; d < padded_; d++) out[d] = 0;
        }
        const i64 words = round_up(words_, LANES);
        const bool direct = op.cached != CACHED_INT8 && words == words_ && (!op.in_pairs() || op.size % 2 == 0);
        for (i64 tile = low / LANES * LANES; tile < high; tile += LANES) {
            const u32* at[LANES];
            for (i64 lane = 0; lane < LANES; lane++) {
                const i64 j = std::clamp(tile + lane, low, high - 1);  // lanes without a key repeat one, unseen
                u32* copy = rows_.data() + lane * words;
                if (direct) {
                    at[lane] = reinterpret_cast<const u32*>(keys[j]);
                    continue;
                }
                std::fill(copy, copy + words, 0u);
                if (op.in_pairs())
                    std::memcpy(copy, keys[j], static_cast<size_t>(2 * op.size));
                else
                    read_entry(op.cached, keys[j], op.size, reinterpret_cast<float*>(copy));
                at[lane] = copy;
            }
            for (i64 w = 0; w < words; w += LANES) transpose_words(at, w, keys_.data() + w * CHUNK + tile, CHUNK);
        }
    }

    // Scores, weights and weighted values of N pairs from `i`.
    template <int N>
    void tile(const Attention& op, i64 base, i64 i) {
        score<N>(op, i);
        i64 from[N], to[N], common_from = 0, common_to = CHUNK;
        for (int n = 0; n < N; n++) {
            const List& list = lists_[(i + n) / repeats_];
            from[n] = std::clamp<i64>(list.start - base, 0, CHUNK), to[n] = std::clamp<i64>(list.end - base, 0, CHUNK);
            common_from = std::max(common_from, from[n]), common_to = std::min(common_to, to[n]);
            if (from[n] < to[n]) soften(op, i + n, from[n], to[n]);
            std::fill(chunk_acc(i + n), chunk_acc(i + n) + padded_, 0.0f);
        }
        if (common_from >= common_to) {
            for (int n = 0; n < N; n++) weigh<1>(i + n, from[n], to[n]);
            return;
        }
        for (int n = 0; n < N; n++) weigh<1>(i + n, from[n], common_from);
        weigh<N>(i, common_from, common_to);
        for (int n = 0; n < N; n++) weigh<1>(i + n, common_to, to[n]);
    }

    // Products of N queries with all keys of the chunk: weights_ holds raw scores afterwards.
    template <int N>
    void score(const Attention& op, i64 i) {
        Floats sums[N][CHUNK_VECTORS];
        for (auto& row : sums)
            for (auto& vector : row) vector = zero();
        const u32* query = query_.data() + i * query_stride_;
        for (i64 w = 0; w < words_; w++) {
            const u32* column = keys_.data() + w * CHUNK;
            if (op.in_pairs()) {
                Pairs keys[CHUNK_VECTORS];
#pragma GCC unroll 4
                for (int v = 0; v < CHUNK_VECTORS; v++) keys[v] = load_pairs(reinterpret_cast<const u16*>(column + v * LANES));
#pragma GCC unroll 6
                for (int n = 0; n < N; n++) {
                    const Pair pair = all_pair(reinterpret_cast<const u16*>(query + n * query_stride_ + w));
#pragma GCC unroll 4
                    for (int v = 0; v < CHUNK_VECTORS; v++) sums[n][v] = dot_pairs(sums[n][v], keys[v], pair);
                }
            } else {
                Floats keys[CHUNK_VECTORS];
#pragma GCC unroll 4
                for (int v = 0; v < CHUNK_VECTORS; v++) keys[v] = load(reinterpret_cast<const float*>(column + v * LANES));
#pragma GCC unroll 6
                for (int n = 0; n < N; n++) {
                    const Floats value = all(bits<float>(query[n * query_stride_ + w]));
#pragma GCC unroll 4
                    for (int v = 0; v < CHUNK_VECTORS; v++) sums[n][v] = fma(keys[v], value, sums[n][v]);
                }
            }
        }
        for (int n = 0; n < N; n++)
            for (int v = 0; v < CHUNK_VECTORS; v++) store(weights(i + n) + v * LANES, sums[n][v]);
    }

    // Scores of the places [from, to) to weights relative to the largest; the others get 0.
    void soften(const Attention& op, i64 i, i64 from, i64 to) {
        float* w = weights(i);
        for (int v = 0; v < CHUNK_VECTORS; v++) store(w + v * LANES, mul(load(w + v * LANES), all(op.scale)));
        if (op.soft_cap > 0)
            for (i64 j = from; j < to; j++) w[j] = op.soft_cap * std::tanh(w[j] / op.soft_cap);
        std::fill(w, w + from, NOTHING), std::fill(w + to, w + CHUNK, NOTHING);
        Floats scores[CHUNK_VECTORS], most = all(NOTHING), sum = zero();
        for (int v = 0; v < CHUNK_VECTORS; v++) scores[v] = load(w + v * LANES), most = larger(scores[v], most);
        const float largest = largest_lane(most);
        for (int v = 0; v < CHUNK_VECTORS; v++) {
            const Floats weight = exp_of_negative(add(scores[v], all(-largest)));
            store(w + v * LANES, weight);
            sum = add(sum, weight);
        }
        chunk_[i] = {largest, sum_lanes(sum)};
    }

    // Add the values of the places [from, to), in order, to the sums of N pairs.
    template <int N>
    void weigh(i64 i, i64 from, i64 to) {
        if (from >= to) return;
        for (i64 d = 0; d < padded_; d += 4 * LANES) {
            switch (std::min<i64>(4, (padded_ - d) / LANES)) {
                case 1: weigh_columns<N, 1>(i, d, from, to); break;
                case 2: weigh_columns<N, 2>(i, d, from, to); break;
                case 3: weigh_columns<N, 3>(i, d, from, to); break;
                default: weigh_columns<N, 4>(i, d, from, to);
            }
        }
    }

    template <int N, int V>
    void weigh_columns(i64 i, i64 d, i64 from, i64 to) {
        Floats sums[N][V];
        for (int n = 0; n < N; n++)
            for (int v = 0; v < V; v++) sums[n][v] = load(chunk_acc(i + n) + d + v * LANES);
        for (i64 j = from; j < to; j++) {
            const float* row = values_.data() + j * padded_ + d;
            Floats values[V];
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) values[v] = load(row + v * LANES);
#pragma GCC unroll 6
            for (int n = 0; n < N; n++) {
                const Floats weight = all(weights_[(i + n) * CHUNK + j]);
#pragma GCC unroll 4
                for (int v = 0; v < V; v++) sums[n][v] = fma(values[v], weight, sums[n][v]);
            }
        }
        for (int n = 0; n < N; n++)
            for (int v = 0; v < V; v++) store(chunk_acc(i + n) + d + v * LANES, sums[n][v]);
    }

    void finish(const Attention& op, i64 query, i64 head, i64 i) {
        float* out = op.out + query * op.out_stride + head * op.size;
        const float inverse = 1.0f / state_[i].total;
        for (i64 d = 0; d < op.size; d++) out[d] = acc(i)[d] * inverse;
    }

    static constexpr size_t MAX_LISTED = 256;  // repeats may exceed MAX_PAIRS: one query is always taken whole

    i64 padded_ = 0, repeats_ = 1, words_ = 0, query_stride_ = 0, pairs_ = 0;
    bool is_shared_ = true;
    std::vector<List> lists_;
    std::vector<u32> keys_, rows_, query_;
    std::vector<float> values_, weights_, acc_, chunk_acc_;
    std::vector<Partial> state_, chunk_;
};

}  // namespace specdec
