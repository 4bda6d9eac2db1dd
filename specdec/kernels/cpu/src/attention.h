// Ragged attention over a paged cache, chunk by chunk of CHUNK positions.
//
// A query sees a sequence of its own: the committed entries up to its position, then the draft nodes that its ancestor
// mask names, closed up. Chunks are counted along that sequence, sums run through a chunk in its order, and chunks are
// folded into the result one after the other. So a query's bits depend neither on its neighbours, nor on the threads,
// nor on whether its ancestors lay scattered in a tree or in a row.
//
// Over a cache in bfloat16 the queries and the weights of values are rounded to it too, and products taken in pairs;
// the weights are divided by the sum of what they were rounded to.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "attention_plan.h"
#include "entries.h"
#include "rowwise.h"
#include "vec.h"

namespace specdec {

inline constexpr i64 CHUNK_VECTORS = CHUNK / LANES;
inline constexpr int PAIR_TILE = 6;  // pairs times four vectors of sums: 24 registers
inline constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// The softmax of some scores, not yet divided: the largest score, the sum of weights (0: nothing was seen), and the
// weighted values.
struct Partial {
    float largest, total;
};

// Put `next` after `into`; `smaller` is e^-|difference of their largest scores|.
inline void fold(Partial& into, float* acc, const Partial& next, const float* next_acc, float smaller, i64 padded) {
    if (next.total == 0) return;
    const bool grows = next.largest > into.largest;
    const float a = grows ? smaller : 1.0f, b = grows ? 1.0f : smaller;
    into.largest = grows ? next.largest : into.largest;
    into.total = into.total * a + next.total * b;
    for (i64 i = 0; i < padded; i += LANES)
        store(acc + i, add(mul(load(acc + i), all(a)), mul(load(next_acc + i), all(b))));
}

inline float gap(const Partial& into, const Partial& next) {
    return next.largest > into.largest ? into.largest - next.largest : next.largest - into.largest;
}

// One thread's memory for attention, and the arithmetic on it.
class AttentionWorker {
  public:
    // One task; results that are kept go to `partials` and `sums`, [.., padded] each. `after` is the task that this
    // thread does next, or null.
    void run(const Attention& op, const StepRows& rows, const AttentionTask& task, const AttentionTask* after,
             Partial* partials, float* sums) {
        begin(op, rows, task);
        ahead_.begin(op, rows, task, after);
        for (i64 c = task.chunk; c < task.last_chunk; c++) {
            if (task.partial >= 0) keep_at(task.partial + c, (rows.seq_lens[task.row] + CHUNK - 1) / CHUNK, partials, sums);
            attend_chunk(op, rows, task, c);
        }
        if (task.partial < 0)
            for (i64 i = 0; i < pairs_; i++) finish(op, query_of(task, i), head_of(op, task, i), i);
    }

    // Put the kept results of pair `i` of a fold together.
    void fold_pair(const Attention& op, const AttentionPlan::Fold& f, i64 i, const Partial* partials, const float* sums) {
        padded_ = op.padded(), repeats_ = op.repeats();
        reserve(op);
        state_[0] = {NOTHING, 0};
        std::fill(acc(0), acc(0) + padded_, 0.0f);
        for (i64 c = 0; c < f.chunks; c++) {
            const i64 at = f.partial + i * f.chunks + c;
            float smaller[LANES];
            store(smaller, exp_of_negative(all(gap(state_[0], partials[at]))));
            fold(state_[0], acc(0), partials[at], sums + at * padded_, smaller[0], padded_);
        }
        finish(op, f.first + i / repeats_, f.head * repeats_ + i % repeats_, 0);
    }

  private:
    // Pairs of a task are in the order of their KV heads, then queries, then heads.
    i64 list_of(i64 pair) const { return pair % group_pairs_ / repeats_; }
    i64 query_of(const AttentionTask& task, i64 pair) const { return task.first + list_of(pair); }
    i64 head_of(const Attention& op, const AttentionTask& task, i64 pair) const {
        return (task.head + pair / group_pairs_) * op.repeats() + pair % repeats_;
    }

    // Where the next chunk's results go: pair i's to `at` + i * step.
    void keep_at(i64 at, i64 step, Partial* partials, float* sums) {
        kept_ = {partials, sums, at, step};
        for (i64 i = 0; i < pairs_; i++) partials[at + i * step] = {NOTHING, 0};
    }

    // A chunk's results of `count` pairs from `i`, which are in chunk_ and chunk_acc_: fold them or keep them.
    void settle(const AttentionTask& task, i64 i, int count) {
        if (task.partial < 0) {
            float smaller[LANES] = {};
            for (int n = 0; n < count; n++) smaller[n] = gap(state_[i + n], chunk_[n]);
            store(smaller, exp_of_negative(load(smaller)));
            for (int n = 0; n < count; n++) fold(state_[i + n], acc(i + n), chunk_[n], chunk_acc(n), smaller[n], padded_);
            return;
        }
        for (int n = 0; n < count; n++) {
            const i64 at = kept_.at + (i + n) * kept_.step;
            kept_.partials[at] = chunk_[n];
            if (chunk_[n].total != 0) std::copy(chunk_acc(n), chunk_acc(n) + padded_, kept_.sums + at * padded_);
        }
    }

    float* acc(i64 i) { return acc_.data() + i * padded_; }
    // Of the `n`-th pair of a tile.
    float* chunk_acc(i64 n) { return chunk_acc_.data() + n * padded_; }
    float* weights(i64 n) { return weights_[n]; }
    u16* weight_pairs(i64 n) { return weight_pairs_[n]; }

    void reserve(const Attention& op) {
        const size_t words = static_cast<size_t>(round_up(op.size, LANES)) + LANES;
        const auto grow = [](auto& v, size_t n) {
            if (v.size() < n) v.resize(n);
        };
        grow(keys_, words * CHUNK), grow(rows_, words * LANES);
        grow(values_, static_cast<size_t>(padded_ * CHUNK)), grow(value_pairs_, static_cast<size_t>(padded_ * CHUNK / 2));
        grow(zeros_, static_cast<size_t>(padded_)), grow(query_, words * MAX_LISTED);
        grow(acc_, static_cast<size_t>(padded_) * MAX_LISTED), grow(chunk_acc_, static_cast<size_t>(padded_ * PAIR_TILE));
        grow(state_, MAX_LISTED);
    }

    void begin(const Attention& op, const StepRows& rows, const AttentionTask& task) {
        padded_ = op.padded(), repeats_ = op.repeats(), words_ = op.words();
        query_stride_ = words_ + (words_ & 1);
        group_pairs_ = (task.last - task.first) * repeats_;
        pairs_ = group_pairs_ * (task.last_head - task.head);
        in_pairs_ = op.in_pairs();
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
            const float* q = op.query + query_of(task, i) * op.query_stride + head_of(op, task, i) * op.size;
            u32* out = query_.data() + i * query_stride_;
            if (op.in_pairs()) {
                u16* half = reinterpret_cast<u16*>(out);
                to_bf16(q, op.size, half);
                if (op.size & 1) half[op.size] = 0;
            } else {
                std::memcpy(out, q, static_cast<size_t>(4 * op.size));
            }
        }
        std::fill(acc_.begin(), acc_.begin() + pairs_ * padded_, 0.0f);
    }

    // The chunk's results for every pair.
    void attend_chunk(const Attention& op, const StepRows& rows, const AttentionTask& task, i64 c) {
        const i64 committed = rows.committed[task.row], base = c * CHUNK;
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
        i64 at[CHUNK];
        find_entries(op, rows, task, base, low, high, lists_[last - 1], at);
        for (i64 g = 0; g < task.last_head - task.head; g++) {
            const i64 offset = (task.head + g) * entry_bytes(op.cached, op.size);
            if (in_pairs_)
                load_value_pairs(op, op.values + offset, at, low, high);
            else
                load_values(op, op.values + offset, at, low, high);
            load_keys(op, op.keys + offset, at, low, high);
            attend_pairs(op, task, base, g * group_pairs_ + first * repeats_, g * group_pairs_ + last * repeats_);
        }
    }

    void attend_pairs(const Attention& op, const AttentionTask& task, i64 base, i64 i, i64 last) {
        while (i < last) {
            const int count = static_cast<int>(std::min<i64>(PAIR_TILE, last - i));
            switch (count) {
                case 1: tile<1>(op, base, i); break;
                case 2: tile<2>(op, base, i); break;
                case 3: tile<3>(op, base, i); break;
                case 4: tile<4>(op, base, i); break;
                case 5: tile<5>(op, base, i); break;
                default: tile<PAIR_TILE>(op, base, i);
            }
            settle(task, i, count);
            i += count;
        }
    }

    struct List {
        i64 start, end, committed;
        u64 mask;
    };

    // The offsets of the entries at the places [low, high) of the chunk.
    void find_entries(const Attention& op, const StepRows& rows, const AttentionTask& task, i64 base, i64 low, i64 high,
                      const List& list, i64 (&at)[CHUNK]) const {
        const i64 straight = is_shared_ ? high : std::clamp(list.committed - base, low, high);
        EntryWalk walk(op, rows, task.row, base + low);
        for (i64 j = low; j < straight; j++) at[j] = walk.next();
        u64 mask = list.mask;
        for (i64 skipped = list.committed; skipped < base + straight && mask; skipped++) mask &= mask - 1;
        for (i64 j = straight; j < high; j++, mask &= mask - 1) {
            const i64 entry = rows.committed[task.row] + __builtin_ctzll(mask);
            at[j] = EntryWalk(op, rows, task.row, entry).next();
        }
    }

    // Values as rows of floats, for the places [low, high) of the chunk.
    void load_values(const Attention& op, const u8* values, const i64 (&at)[CHUNK], i64 low, i64 high) {
        for (i64 j = low; j < high; j++) {
            float* out = values_.data() + j * padded_;
            read_entry(op.cached, values + at[j], op.size, out);
            std::fill(out + op.size, out + padded_, 0.0f);
            ahead_.advance();
        }
    }

    // Values as rows of pairs: one word for each two places. What belongs to neither is 0.
    void load_value_pairs(const Attention& op, const u8* values, const i64 (&at)[CHUNK], i64 low, i64 high) {
        const auto value = [&](i64 j) {
            return j < low || j >= high ? zeros_.data() : reinterpret_cast<const u16*>(values + at[j]);
        };
        for (i64 j = low & ~1; j < high; j += 2) {
            const u16 *even = value(j), *odd = value(j + 1);
            u32* out = value_pairs_.data() + j / 2 * padded_;
            i64 d = 0;
            for (; d + LANES <= op.size; d += LANES) pair_up(even + d, odd + d, out + d);
            for (; d < op.size; d++) out[d] = even[d] | static_cast<u32>(odd[d]) << 16;
            std::fill(out + op.size, out + padded_, 0u);
            ahead_.advance(), ahead_.advance();
        }
    }

    // Keys as columns, for the places [low, high) of the chunk.
    void load_keys(const Attention& op, const u8* keys, const i64 (&at)[CHUNK], i64 low, i64 high) {
        const i64 words = round_up(words_, LANES);
        const bool direct = op.cached != CACHED_INT8 && words == words_ && (!in_pairs_ || op.size % 2 == 0);
        for (i64 tile = low / LANES * LANES; tile < high; tile += LANES) {
            const u32* rows[LANES];
            for (i64 lane = 0; lane < LANES; lane++) {
                const u8* key = keys + at[std::clamp(tile + lane, low, high - 1)];  // lanes without a key repeat one, unseen
                u32* copy = rows_.data() + lane * words;
                rows[lane] = direct ? reinterpret_cast<const u32*>(key) : copy;
                if (direct) continue;
                std::fill(copy, copy + words, 0u);
                if (in_pairs_)
                    std::memcpy(copy, key, static_cast<size_t>(2 * op.size));
                else
                    read_entry(op.cached, key, op.size, reinterpret_cast<float*>(copy));
            }
            for (i64 w = 0; w < words; w += LANES) transpose_words(rows, w, keys_.data() + w * CHUNK + tile, CHUNK);
        }
    }

    // Scores, weights and weighted values of N pairs from `i`: their results are in chunk_ and chunk_acc_.
    template <int N>
    void tile(const Attention& op, i64 base, i64 i) {
        score<N>(op, i);
        i64 from[N], to[N], common_from = 0, common_to = CHUNK;
        for (int n = 0; n < N; n++) {
            const List& list = lists_[list_of(i + n)];
            from[n] = std::clamp<i64>(list.start - base, 0, CHUNK), to[n] = std::clamp<i64>(list.end - base, 0, CHUNK);
            common_from = std::max(common_from, from[n]), common_to = std::min(common_to, to[n]);
            chunk_[n] = {NOTHING, 0};
            if (from[n] < to[n]) soften(op, n, from[n], to[n]);
            std::fill(chunk_acc(n), chunk_acc(n) + padded_, 0.0f);
        }
        // A word of values that one of them sees by half goes to each by itself.
        if (in_pairs_) common_from += common_from & 1, common_to -= common_to & 1;
        if (common_from >= common_to) {
            for (int n = 0; n < N; n++) weigh<1>(n, from[n], to[n]);
            return;
        }
        for (int n = 0; n < N; n++) weigh<1>(n, from[n], common_from);
        weigh<N>(0, common_from, common_to);
        for (int n = 0; n < N; n++) weigh<1>(n, common_to, to[n]);
    }

    // Products of N queries with all keys of the chunk: weights_ holds scores afterwards.
    template <int N>
    void score(const Attention& op, i64 i) {
        Floats sums[N][CHUNK_VECTORS];
        for (auto& row : sums)
            for (auto& vector : row) vector = zero();
        const u32* query = query_.data() + i * query_stride_;
        for (i64 w = 0; w < words_; w++) {
            const u32* column = keys_.data() + w * CHUNK;
            if (in_pairs_) {
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
            for (int v = 0; v < CHUNK_VECTORS; v++) store(weights(n) + v * LANES, mul(sums[n][v], all(op.scale)));
    }

    // Scores of the places [from, to) to weights relative to the largest; the others get 0. What is summed up is the
    // weights as values are multiplied with them.
    void soften(const Attention& op, i64 n, i64 from, i64 to) {
        float* w = weights(n);
        if (op.soft_cap > 0)
            for (i64 j = from; j < to; j++) w[j] = op.soft_cap * std::tanh(w[j] / op.soft_cap);
        std::fill(w, w + from, NOTHING), std::fill(w + to, w + CHUNK, NOTHING);
        Floats scores[CHUNK_VECTORS], most = all(NOTHING), sum = zero();
        for (int v = 0; v < CHUNK_VECTORS; v++) scores[v] = load(w + v * LANES), most = larger(scores[v], most);
        const float largest = largest_lane(most);
        for (int v = 0; v < CHUNK_VECTORS; v++) {
            Floats weight = exp_of_negative(add(scores[v], all(-largest)));
            if (in_pairs_) {
                u16* rounded = weight_pairs(n) + v * LANES;
                store_bf16(rounded, weight);
                weight = load_bf16(rounded);
            } else {
                store(w + v * LANES, weight);
            }
            sum = add(sum, weight);
        }
        chunk_[n] = {largest, sum_lanes(sum)};
    }

    // Add the values of the places [from, to), in order, to the sums of N pairs of a tile, from its `first`.
    template <int N>
    void weigh(i64 first, i64 from, i64 to) {
        if (from >= to) return;
        for (i64 d = 0; d < padded_; d += 4 * LANES) {
            switch (std::min<i64>(4, (padded_ - d) / LANES)) {
                case 1: weigh_columns<N, 1>(first, d, from, to); break;
                case 2: weigh_columns<N, 2>(first, d, from, to); break;
                case 3: weigh_columns<N, 3>(first, d, from, to); break;
                default: weigh_columns<N, 4>(first, d, from, to);
            }
        }
    }

    template <int N, int V>
    void weigh_columns(i64 first, i64 d, i64 from, i64 to) {
        Floats sums[N][V];
        for (int n = 0; n < N; n++)
            for (int v = 0; v < V; v++) sums[n][v] = load(chunk_acc(first + n) + d + v * LANES);
        if (in_pairs_)
            add_value_pairs(first, d, from, to, sums);
        else
            add_values(first, d, from, to, sums);
        for (int n = 0; n < N; n++)
            for (int v = 0; v < V; v++) store(chunk_acc(first + n) + d + v * LANES, sums[n][v]);
    }

    template <int N, int V>
    void add_values(i64 first, i64 d, i64 from, i64 to, Floats (&sums)[N][V]) {
        for (i64 j = from; j < to; j++) {
            const float* row = values_.data() + j * padded_ + d;
            Floats values[V];
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) values[v] = load(row + v * LANES);
#pragma GCC unroll 6
            for (int n = 0; n < N; n++) {
                const Floats weight = all(weights_[first + n][j]);
#pragma GCC unroll 4
                for (int v = 0; v < V; v++) sums[n][v] = fma(values[v], weight, sums[n][v]);
            }
        }
    }

    // Of several pairs `from` and `to` are even.
    template <int N, int V>
    void add_value_pairs(i64 first, i64 d, i64 from, i64 to, Floats (&sums)[N][V]) {
        if constexpr (N == 1)
            if (from & 1) add_half_pair(first, d, from / 2, 0xffff0000u, sums[0]);
        for (i64 j = (from + 1) / 2; j < to / 2; j++)
            add_pair(first, value_pairs_.data() + j * padded_ + d, j, sums);
        if constexpr (N == 1)
            if (to & 1) add_half_pair(first, d, to / 2, 0x0000ffffu, sums[0]);
    }

    template <int N, int V>
    void add_pair(i64 first, const u32* row, i64 j, Floats (&sums)[N][V]) {
        Pairs values[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) values[v] = load_pairs(reinterpret_cast<const u16*>(row + v * LANES));
#pragma GCC unroll 6
        for (int n = 0; n < N; n++) {
            const Pair weight = all_pair(weight_pairs_[first + n] + 2 * j);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) sums[n][v] = dot_pairs(sums[n][v], values[v], weight);
        }
    }

    // What the pair does not see may be anything, and 0 times anything is not always 0.
    template <int V>
    void add_half_pair(i64 first, i64 d, i64 j, u32 seen, Floats (&sums)[V]) {
        u32 row[V * LANES];
        for (i64 k = 0; k < V * LANES; k++) row[k] = value_pairs_[j * padded_ + d + k] & seen;
        add_pair(first, row, j, reinterpret_cast<Floats (&)[1][V]>(sums));
    }

    void finish(const Attention& op, i64 query, i64 head, i64 i) {
        float* out = op.out + query * op.out_stride + head * op.size;
        const float inverse = 1.0f / state_[i].total;
        i64 d = 0;
        for (; d + LANES <= op.size; d += LANES) store(out + d, mul(load(acc(i) + d), all(inverse)));
        for (; d < op.size; d++) out[d] = acc(i)[d] * inverse;
    }

    static constexpr size_t MAX_LISTED = 256;  // repeats may exceed MAX_PAIRS: one query is always taken whole

    i64 padded_ = 0, repeats_ = 1, words_ = 0, query_stride_ = 0, pairs_ = 0, group_pairs_ = 1;
    bool is_shared_ = true, in_pairs_ = false;
    EntryFetcher ahead_;
    std::vector<List> lists_;
    std::vector<u32> keys_, rows_, query_, value_pairs_;
    std::vector<u16> zeros_;
    std::vector<float> values_, acc_, chunk_acc_;
    std::vector<Partial> state_;
    struct {
        Partial* partials;
        float* sums;
        i64 at, step;
    } kept_{};
    // Of a tile.
    Partial chunk_[PAIR_TILE];
    alignas(64) float weights_[PAIR_TILE][CHUNK];
    alignas(64) u16 weight_pairs_[PAIR_TILE][CHUNK];
};

}  // namespace specdec
