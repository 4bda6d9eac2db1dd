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
#include <type_traits>
#include <utility>
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

// What the weighted values so far and those of the next chunk are multiplied with before they are added.
struct Shares {
    float before, next;
};

// Put `next` after `into`; of two chunks the one with the smaller scores weighs `smaller` as much.
inline Shares join(Partial& into, const Partial& next, float smaller) {
    if (next.total == 0) return {1, 0};
    const bool grows = next.largest > into.largest;
    const Shares shares{grows ? smaller : 1.0f, grows ? 1.0f : smaller};
    into = {grows ? next.largest : into.largest, into.total * shares.before + next.total * shares.next};
    return shares;
}

inline Floats blend(Floats before, Floats next, const Shares& shares) {
    return add(mul(before, all(shares.before)), mul(next, all(shares.next)));
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
        padded_ = op.padded(), repeats_ = op.repeats(), exponent_ = exponent(op);
        reserve(op);
        state_[0] = {NOTHING, 0};
        std::fill(acc(0), acc(0) + padded_, 0.0f);
        for (i64 c = 0; c < f.chunks; c++) {
            const i64 at = f.partial + i * f.chunks + c;
            const Partial* next = partials + at;
            Shares shares;
            join_all<1>(0, next, &shares);
            if (next->total != 0) add_chunk(0, sums + at * padded_, shares);
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

    // Scores are the products of queries and keys as they are, unless there is more to do with them than to scale them.
    static bool is_plain(const Attention& op) { return op.soft_cap == 0 && op.scale > 0; }
    static float exponent(const Attention& op) { return LOG2_E * (is_plain(op) ? op.scale : 1.0f); }

    // Join chunks to N pairs from `i`: only their numbers.
    template <int N>
    void join_all(i64 i, const Partial* chunks, Shares* shares) {
        float smaller[LANES] = {};
        for (int n = 0; n < N; n++) smaller[n] = gap(state_[i + n], chunks[n]) * exponent_;
        store(smaller, exp2_up_to_128(load(smaller)));
        for (int n = 0; n < N; n++) shares[n] = join(state_[i + n], chunks[n], smaller[n]);
    }

    // The values of a chunk for pair `i`.
    void add_chunk(i64 i, const float* values, const Shares& shares) {
        for (i64 d = 0; d < padded_; d += LANES) store(acc(i) + d, blend(load(acc(i) + d), load(values + d), shares));
    }

    float* kept_sums(i64 i) { return kept_.sums + (kept_.at + i * kept_.step) * padded_; }

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
        padded_ = op.padded(), repeats_ = op.repeats(), words_ = op.words(), exponent_ = exponent(op);
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
        bool is_whole = is_plain(op);
        for (i64 q = first; q < last; q++) {
            const auto [from, to] = lists_[q].in(base);
            if (from < to) low = std::min(low, from), high = std::max(high, to);
            is_whole &= to - from == CHUNK;
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
            attend_pairs(op, task, base, is_whole, g * group_pairs_ + first * repeats_, g * group_pairs_ + last * repeats_);
        }
    }

    // `is_whole`: every pair sees the whole chunk, and scores are plain.
    void attend_pairs(const Attention& op, const AttentionTask& task, i64 base, bool is_whole, i64 i, i64 last) {
        while (i < last) {
            const int count = static_cast<int>(std::min<i64>(PAIR_TILE, last - i));
            switch (count) {
                case 1: tile<1>(op, task, base, is_whole, i); break;
                case 2: tile<2>(op, task, base, is_whole, i); break;
                case 3: tile<3>(op, task, base, is_whole, i); break;
                case 4: tile<4>(op, task, base, is_whole, i); break;
                case 5: tile<5>(op, task, base, is_whole, i); break;
                default: tile<PAIR_TILE>(op, task, base, is_whole, i);
            }
            i += count;
        }
    }

    struct List {
        i64 start, end, committed;
        u64 mask;

        // Of the chunk at `base` the places that the query sees.
        std::pair<i64, i64> in(i64 base) const {
            return {std::clamp<i64>(start - base, 0, CHUNK), std::clamp<i64>(end - base, 0, CHUNK)};
        }
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

    // The chunk's scores, weights and weighted values of N pairs from `i`, joined to what they had or kept.
    template <int N>
    void tile(const Attention& op, const AttentionTask& task, i64 base, bool is_whole, i64 i) {
        Floats scores[N][CHUNK_VECTORS];
        score<N>(i, scores);
        std::pair<i64, i64> seen[N];
        if (!is_whole)
            for (int n = 0; n < N; n++) {
                seen[n] = lists_[list_of(i + n)].in(base);
                restrict(op, seen[n].first, seen[n].second, scores[n]);
            }
        soften<N>(scores);
        if (!is_whole)
            for (int n = 0; n < N; n++)
                if (seen[n].first >= seen[n].second) chunk_[n] = {NOTHING, 0};
        Shares shares[N];
        if (task.partial < 0)
            join_all<N>(i, chunk_, shares);
        else
            for (int n = 0; n < N; n++) kept_.partials[kept_.at + (i + n) * kept_.step] = chunk_[n];
        if (is_whole) {
            each_columns([&](i64 d, auto columns) { weigh_whole<N, columns()>(task, i, d, shares); });
            return;
        }
        weigh_seen<N>(seen);
        for (int n = 0; n < N; n++) {
            if (chunk_[n].total == 0) continue;
            if (task.partial < 0)
                add_chunk(i + n, chunk_acc(n), shares[n]);
            else
                std::copy(chunk_acc(n), chunk_acc(n) + padded_, kept_sums(i + n));
        }
    }

    // Weighted values of what each of N pairs sees: in chunk_acc.
    template <int N>
    void weigh_seen(const std::pair<i64, i64> (&seen)[N]) {
        i64 common_from = 0, common_to = CHUNK;
        for (int n = 0; n < N; n++) {
            common_from = std::max(common_from, seen[n].first), common_to = std::min(common_to, seen[n].second);
            std::fill(chunk_acc(n), chunk_acc(n) + padded_, 0.0f);
        }
        // A word of values that one of them sees by half goes to each by itself.
        if (in_pairs_) common_from += common_from & 1, common_to -= common_to & 1;
        if (common_from >= common_to) {
            for (int n = 0; n < N; n++) weigh<1>(n, seen[n].first, seen[n].second);
            return;
        }
        for (int n = 0; n < N; n++) weigh<1>(n, seen[n].first, common_from);
        weigh<N>(0, common_from, common_to);
        for (int n = 0; n < N; n++) weigh<1>(n, common_to, seen[n].second);
    }

    // Products of N queries with all keys of the chunk.
    template <int N>
    void score(i64 i, Floats (&sums)[N][CHUNK_VECTORS]) {
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
    }

    // Leave one pair the scores of the places [from, to).
    void restrict(const Attention& op, i64 from, i64 to, Floats (&scores)[CHUNK_VECTORS]) {
        alignas(64) float lanes[CHUNK];
        for (int v = 0; v < CHUNK_VECTORS; v++) store(lanes + v * LANES, scores[v]);
        if (!is_plain(op))
            for (i64 j = from; j < to; j++) {
                const float score = lanes[j] * op.scale;
                lanes[j] = op.soft_cap > 0 ? op.soft_cap * std::tanh(score / op.soft_cap) : score;
            }
        std::fill(lanes, lanes + from, NOTHING), std::fill(lanes + std::max(from, to), lanes + CHUNK, NOTHING);
        for (int v = 0; v < CHUNK_VECTORS; v++) scores[v] = load(lanes + v * LANES);
    }

    // Scores to weights relative to the largest, of N pairs side by side, for each is a chain of its own. What is summed
    // up is the weights as values are multiplied with them.
    template <int N>
    void soften(const Floats (&scores)[N][CHUNK_VECTORS]) {
        Floats sums[N];
        for (int n = 0; n < N; n++) {
            Floats most = all(NOTHING);
            for (int v = 0; v < CHUNK_VECTORS; v++) most = larger(scores[n][v], most);
            chunk_[n].largest = largest_lane(most);
        }
        for (int n = 0; n < N; n++) {
            const Floats least = all(-chunk_[n].largest);
            sums[n] = zero();
            for (int v = 0; v < CHUNK_VECTORS; v++) {
                Floats weight = exp2_up_to_128(mul(add(scores[n][v], least), all(exponent_)));
                if (in_pairs_)
                    weight = store_rounded(weight_pairs(n) + v * LANES, weight);
                else
                    store(weights(n) + v * LANES, weight);
                sums[n] = add(sums[n], weight);
            }
        }
        for (int n = 0; n < N; n++) chunk_[n].total = sum_lanes(sums[n]);
    }

    // f(d, number of vectors from d) for all columns of values.
    template <class F>
    void each_columns(F f) {
        for (i64 d = 0; d < padded_; d += 4 * LANES) {
            switch (std::min<i64>(4, (padded_ - d) / LANES)) {
                case 1: f(d, std::integral_constant<int, 1>()); break;
                case 2: f(d, std::integral_constant<int, 2>()); break;
                case 3: f(d, std::integral_constant<int, 3>()); break;
                default: f(d, std::integral_constant<int, 4>());
            }
        }
    }

    // Add the values of the places [from, to), in order, to the sums of N pairs of a tile, from its `first`.
    template <int N>
    void weigh(i64 first, i64 from, i64 to) {
        if (from < to) each_columns([&](i64 d, auto columns) { weigh_columns<N, columns()>(first, d, from, to); });
    }

    template <int N, int V>
    void weigh_columns(i64 first, i64 d, i64 from, i64 to) {
        Floats sums[N][V];
        for (int n = 0; n < N; n++)
            for (int v = 0; v < V; v++) sums[n][v] = load(chunk_acc(first + n) + d + v * LANES);
        add_places(first, d, from, to, sums);
        for (int n = 0; n < N; n++)
            for (int v = 0; v < V; v++) store(chunk_acc(first + n) + d + v * LANES, sums[n][v]);
    }

    // Columns of the whole chunk's values for N pairs from `i`, joined or kept as they come.
    template <int N, int V>
    void weigh_whole(const AttentionTask& task, i64 i, i64 d, const Shares* shares) {
        Floats sums[N][V];
        for (auto& row : sums)
            for (auto& vector : row) vector = zero();
        add_places(0, d, 0, CHUNK, sums);
        for (int n = 0; n < N; n++) {
            float* out = (task.partial < 0 ? acc(i + n) : kept_sums(i + n)) + d;
            for (int v = 0; v < V; v++, out += LANES)
                store(out, task.partial < 0 ? blend(load(out), sums[n][v], shares[n]) : sums[n][v]);
        }
    }

    template <int N, int V>
    void add_places(i64 first, i64 d, i64 from, i64 to, Floats (&sums)[N][V]) {
        if (in_pairs_)
            add_value_pairs(first, d, from, to, sums);
        else
            add_values(first, d, from, to, sums);
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
    float exponent_ = 1;  // of 2, for a score of 1
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
