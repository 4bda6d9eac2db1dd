// Choosing tokens from rows of logits: the largest, a row's mass, a draw, and what filters leave of a law.
//
// A row is cut into chunks of columns, the same ones however many threads there are, and what they hold is put together
// in their order: no result depends on threads or on other rows.
#pragma once

#include <algorithm>
#include <limits>

#include "vec.h"

namespace specdec {

inline constexpr i64 COLUMNS = 4096;  // of a chunk
inline constexpr float LEAST = -std::numeric_limits<float>::infinity();

inline i64 num_chunks(i64 columns) { return (columns + COLUMNS - 1) / COLUMNS; }

// The largest of `count` numbers; a NaN if there is one.
template <class T>
inline T largest_of(const T* x, i64 count) {
    constexpr int WIDE = 4 * LANES;  // no lane waits for the one before
    T best[WIDE];
    i32 wrong[WIDE] = {};
    for (int l = 0; l < WIDE; l++) best[l] = x[0];
    i64 i = 0;
    for (; i + WIDE <= count; i += WIDE)
        for (int l = 0; l < WIDE; l++) {
            best[l] = x[i + l] > best[l] ? x[i + l] : best[l];
            wrong[l] |= x[i + l] != x[i + l];
        }
    for (; i < count; i++) {
        best[0] = x[i] > best[0] ? x[i] : best[0];
        wrong[0] |= x[i] != x[i];
    }
    for (int l = 1; l < WIDE; l++) {
        best[0] = best[l] > best[0] ? best[l] : best[0];
        wrong[0] |= wrong[l];
    }
    return wrong[0] ? std::numeric_limits<T>::quiet_NaN() : best[0];
}

inline i64 first_equal(const float* x, i64 count, float value) {
    return std::find_if(x, x + count, [&](float v) { return v == value || (v != v && value != value); }) - x;
}

// e^x in double precision for x <= 0, 0 below -700; without branches so that loops of it vectorise.
inline double exp_double(double x) {
    constexpr double SHIFT = 6755399441055744.0;  // rounds to an integer in the low bits
    const double clamped = x < -700.0 ? -700.0 : x;
    const double shifted = clamped * 1.4426950408889634 + SHIFT;
    const i64 power = bits<i64>(shifted) - bits<i64>(SHIFT);
    const double whole = shifted - SHIFT;
    const double rest = (clamped - whole * 0.693147180369123816490) - whole * 1.90821492927058770002e-10;
    double sum = 1.0 / 6227020800.0;
    sum = sum * rest + 1.0 / 479001600.0;
    sum = sum * rest + 1.0 / 39916800.0;
    sum = sum * rest + 1.0 / 3628800.0;
    sum = sum * rest + 1.0 / 362880.0;
    sum = sum * rest + 1.0 / 40320.0;
    sum = sum * rest + 1.0 / 5040.0;
    sum = sum * rest + 1.0 / 720.0;
    sum = sum * rest + 1.0 / 120.0;
    sum = sum * rest + 1.0 / 24.0;
    sum = sum * rest + 1.0 / 6.0;
    sum = sum * rest + 0.5;
    sum = sum * rest + 1.0;
    sum = sum * rest + 1.0;
    const double result = sum * bits<double>(static_cast<i64>(static_cast<u64>(power + 1023) << 52));
    return x < -700.0 ? 0.0 : result;
}

// The sum of e^(x - top), in one order.
inline double mass_over(const float* x, i64 count, float top) {
    double sums[LANES] = {};
    i64 i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++) sums[l] += exp_double(static_cast<double>(x[i + l]) - static_cast<double>(top));
    double sum = 0;
    for (; i < count; i++) sum += exp_double(static_cast<double>(x[i]) - static_cast<double>(top));
    for (const double each : sums) sum += each;
    return sum;
}

// The mass of a chunk is `sum` times e^top.
struct Mass {
    float top;
    double sum;
};

inline Mass mass_of(const float* x, i64 count) {
    const float top = largest_of(x, count);
    return {top, top == LEAST ? 0.0 : mass_over(x, count, top)};
}

// The logarithm of what chunks weigh together; NaN where a row holds one.
inline double log_mass(const Mass* chunks, i64 count, i64 stride) {
    float top = LEAST;
    for (i64 c = 0; c < count; c++) {
        if (chunks[c * stride].top != chunks[c * stride].top) return std::numeric_limits<double>::quiet_NaN();
        top = std::max(top, chunks[c * stride].top);
    }
    if (!std::isfinite(top)) return top;
    double sum = 0;
    for (i64 c = 0; c < count; c++)
        sum += chunks[c * stride].sum * exp_double(static_cast<double>(chunks[c * stride].top) - static_cast<double>(top));
    return static_cast<double>(top) + std::log(sum);
}

// Noise (specdec/kernels/noise.py): four words a counter, a counter for four tokens.
struct NoiseKey {
    u32 seed_low, seed_high, position, kind, sample;
};

inline constexpr int COUNTERS = LANES;        // worked on at a time
inline constexpr int DRAWN = 4 * COUNTERS;    // tokens of these
inline constexpr double MOST_NOISE = 22.9;    // above the noise of the largest word

// words[w][i]: word w of counter `first` + i, by Philox4x32-10.
inline void philox(const NoiseKey& key, u32 first, u32 words[4][COUNTERS]) {
    for (int i = 0; i < COUNTERS; i++) {
        words[0][i] = first + static_cast<u32>(i);
        words[1][i] = key.position;
        words[2][i] = key.kind;
        words[3][i] = key.sample;
    }
    u32 low = key.seed_low, high = key.seed_high;
    for (int round = 0; round < 10; round++, low += 0x9E3779B9u, high += 0xBB67AE85u)
        for (int i = 0; i < COUNTERS; i++) {
            const u64 first_product = static_cast<u64>(words[0][i]) * 0xD2511F53u;
            const u64 second_product = static_cast<u64>(words[2][i]) * 0xCD9E8D57u;
            words[0][i] = static_cast<u32>(second_product >> 32) ^ words[1][i] ^ low;
            words[2][i] = static_cast<u32>(first_product >> 32) ^ words[3][i] ^ high;
            words[1][i] = static_cast<u32>(second_product);
            words[3][i] = static_cast<u32>(first_product);
        }
}

inline double gumbel(u32 word) { return -std::log(-std::log((static_cast<double>(word) + 0.5) / 4294967296.0)); }

// No smaller word has noise above `gap`.
inline u32 least_word(double gap) {
    const double word = 4294967296.0 * std::exp(-std::exp(-gap)) - 8.0;
    return word > 0 ? static_cast<u32>(word) : 0;
}

// A token and its logit plus noise: no token, and what is wrong, where a logit is NaN or infinite.
struct Drawn {
    double score = -std::numeric_limits<double>::infinity();
    i64 token = -1;
};

// The first of the highest scores of `best`, which is of earlier tokens, and of tokens [first, last); `first` is a
// multiple of DRAWN.
template <class T>
Drawn draw(const T* x, i64 first, i64 last, const NoiseKey& key, Drawn best) {
    u32 words[4][COUNTERS];
    constexpr double INFINITE = std::numeric_limits<double>::infinity();
    for (i64 at = first; at < last && best.score == best.score; at += DRAWN) {
        const i64 count = std::min<i64>(DRAWN, last - at);
        const double top = static_cast<double>(largest_of(x + at, count));
        if (!(top < INFINITE)) best = {top, at};  // a NaN is worse, and may come yet
        if (!(top + MOST_NOISE >= best.score) || std::isinf(top)) continue;
        philox(key, static_cast<u32>(at / 4), words);
        const u32 least = least_word(best.score - top);
        bool any = false;
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < COUNTERS; i++) any |= words[w][i] >= least;
        if (!any) continue;
        for (i64 t = 0; t < count; t++) {
            const u32 word = words[t % 4][t / 4];
            if (word < least) continue;
            const double score = static_cast<double>(x[at + t]) + gumbel(word);
            if (score > best.score) best = {score, at + t};
        }
    }
    return best;
}

// What is asked of a row of logits: to be divided, and of the law to keep the `top_k` likeliest tokens (0: all), of
// these as many as weigh `top_p` together, and of those the ones within `reach` (0 or less) of the likeliest.
struct RowFilter {
    double top_p;
    i64 top_k;
    float divisor, reach;
};

struct Candidate {
    float logit;
    i32 token;
    bool operator<(const Candidate& other) const {
        return logit > other.logit || (logit == other.logit && token < other.token);
    }
};

// Those of at least `least`, in the order of tokens. One more than `count` must fit in `found`.
inline i64 collect(const float* x, i64 count, float least, Candidate* found) {
    i64 num = 0;
    for (i64 i = 0; i < count; i++) {
        found[num] = {x[i], static_cast<i32>(i)};
        num += x[i] >= least;
    }
    return num;
}

// How many of the `num` likeliest candidates, in order, weigh `share` of `total`; num + 1 if all of them weigh less.
inline i64 prefix_of(const Candidate* found, i64 num, double share, double total, float top) {
    double mass = 0;
    for (i64 i = 0; i < num; i++) {
        mass += std::exp(static_cast<double>(found[i].logit) - static_cast<double>(top));
        if (mass >= share * total) return i + 1;
    }
    return num + 1;
}

struct Ranking {
    i64 num, kept;  // candidates found; the first `kept` of them, in order, stay
};

// The likeliest of a row's tokens, looked for within ever wider reach of the top until top-k and top-p are decided.
inline Ranking rank(const float* x, i64 columns, const RowFilter& filter, float top, Candidate* found) {
    const bool limited = 0 < filter.top_k && filter.top_k < columns, shared = filter.top_p < 1;
    const double whole = shared && !limited ? mass_over(x, columns, top) : 0;
    for (float reach = 4;; reach *= 2) {
        const bool all = reach > 1000;
        const i64 num = collect(x, columns, all ? std::numeric_limits<float>::lowest() : top - reach, found);
        const i64 limit = limited ? std::min(filter.top_k, num) : num;
        if (limited && num < filter.top_k && !all) continue;
        std::partial_sort(found, found + limit, found + num);
        if (!shared) return {num, limit};
        double total = whole;
        if (limited) {
            total = 0;
            for (i64 i = 0; i < limit; i++) total += std::exp(static_cast<double>(found[i].logit) - static_cast<double>(top));
        }
        const i64 kept = prefix_of(found, limit, filter.top_p, total, top);
        if (kept <= limit || limited || all) return {num, std::min(kept, limit)};
    }
}

// A row as its filter leaves it. Room for one more candidate than there are columns; a row that is no law stays as it is.
inline void filter_row(const float* x, i64 columns, const RowFilter& filter, Candidate* found, float* out) {
    for (i64 i = 0; i < columns; i++) out[i] = x[i] / filter.divisor;
    const float top = largest_of(out, columns);
    if (!std::isfinite(top)) return;
    float least = top + filter.reach;
    if (filter.top_p < 1 || (0 < filter.top_k && filter.top_k < columns)) {
        const Ranking ranking = rank(out, columns, filter, top, found);
        const float border = found[ranking.kept - 1].logit;
        for (i64 i = ranking.kept; i < ranking.num; i++)  // of equals at the border the first stay
            if (found[i].logit == border) out[found[i].token] = LEAST;
        least = std::max(least, border);
    }
    for (i64 i = 0; i < columns; i++) out[i] = out[i] < least ? LEAST : out[i];
}

}  // namespace specdec
