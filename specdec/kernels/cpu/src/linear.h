// Products with packed weights: out[m][n] = sum over k of x[m][k] * w[n][k] (+ bias[n]).
//
// Lanes run over outputs, and every output is summed over k in one order, whatever the number of rows: a row's result
// has the same bits alone, in a draft of five, or in a prompt. Weights lie in panels of PANEL outputs, in the order in
// which they are read, so that one row streams through memory once and front to back:
//
//   F32   [panel][k][32]                                       float
//   BF16  [panel][k / 2][32][2]                                bfloat16; the input is rounded to bfloat16
//   Q8    [panel][k / 32] { [8][32][4] code + 128, [32] scale }          codes of 8 bits, scales in float16
//   Q4    [panel][k / 32] { [4][32][4] two codes, [32] scale, [32] min } codes 0 .. 15: weight = scale * code + min
//   Q8C   [panel] { [k / 4][32][4] code + 128, [32] scale }    one scale an output, float
//
// With quantised weights the input is rounded to 8 bits too, in groups of 32 (Q8C: the whole row), and the products of
// a group are summed exactly in integers. A byte of Q4 holds the codes of k and, in its high half, of k + 4, for k in
// the first four of each eight. k is padded with zeros to whole groups, outputs to whole panels.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "vec.h"

namespace specdec {

enum Kind : i64 { F32 = 0, BF16 = 1, Q8 = 2, Q4 = 3, Q8C = 4 };

inline constexpr i64 PANEL = 32;
inline constexpr i64 GROUP = 32;
inline constexpr i64 Q8_BLOCK = GROUP * PANEL + 2 * PANEL;
inline constexpr i64 Q4_BLOCK = GROUP * PANEL / 2 + 4 * PANEL;

// How far ahead of its use memory is asked for, in bytes: more than a thread can read while the first of it is on its
// way. It is asked into the second cache, which waits for more lines at once than the first, and has room for them.
inline constexpr i64 AHEAD = 16384;

inline i64 round_up(i64 n, i64 step) { return (n + step - 1) / step * step; }

inline i64 padded_inputs(i64 kind, i64 inputs) {
    return kind == F32 ? inputs : kind == BF16 ? round_up(inputs, 2) : round_up(inputs, GROUP);
}

inline i64 panel_bytes(i64 kind, i64 inputs) {
    const i64 k = padded_inputs(kind, inputs);
    switch (kind) {
        case F32: return k * PANEL * 4;
        case BF16: return k * PANEL * 2;
        case Q8: return k / GROUP * Q8_BLOCK;
        case Q4: return k / GROUP * Q4_BLOCK;
        default: return k * PANEL + 4 * PANEL;
    }
}

// How rows are taken together: `count` rows in blocks of ROW_BLOCK, whose inputs stay in the second cache while panels
// pass by, and each block in tiles of equal size, at most `most` rows.
inline constexpr i64 ROW_BLOCK = 96;
#if defined(__AVX512F__)
inline constexpr i64 FLOAT_TILE = 12;  // rows times two vectors of sums, and two of weights: 26 registers of 32
inline constexpr i64 QUANT_TILE = 6;   // each sum twice, in integers and in floats
#else
inline constexpr i64 FLOAT_TILE = 3;  // the same of 16 registers, half or a quarter as long
inline constexpr i64 QUANT_TILE = 2;
#endif

inline i64 tile_rows(i64 kind) { return kind == F32 || kind == BF16 ? FLOAT_TILE : QUANT_TILE; }

struct Tile {
    i64 first, count;  // rows
    i64 index, tiles;  // which of the block's
};

template <class F>
inline void each_tile(i64 kind, i64 first, i64 last, F f) {
    const i64 most = tile_rows(kind), tiles = (last - first + most - 1) / most;
    for (i64 t = 0, m = first; t < tiles; t++) {
        const i64 count = (last - m + tiles - t - 1) / (tiles - t);
        f(Tile{m, count, t, tiles});
        m += count;
    }
}

// The weights that a tile asks for while it is multiplied: its part of what lies ahead of its panel, as every tile of a
// block has the time of its own products for that. The first tile reads the panel as fast as all of them ask for the
// next, so that they have to be further ahead the more they are.
struct Fetch {
    // For each `unit` bytes of a panel of `bytes` at `panel`.
    Fetch(const u8* panel, i64 bytes, i64 unit, const Tile& tile)
        : at(panel + AHEAD + bytes * (tile.tiles - 1 + tile.index) / tile.tiles), step((unit + tile.tiles - 1) / tile.tiles) {}

    void advance() {
        for (i64 i = 0; i < step; i += 64) __builtin_prefetch(at + i, 0, 2);
        at += step;
    }

    const u8* at;
    i64 step;
};

// The codes of numbers, and their sum; `inverse` turns the largest of them into 127.
inline i32 to_codes(const float* __restrict x, i64 count, float inverse, i8* __restrict codes) {
    i32 sum = 0;
    for (i64 i = 0; i < count; i++) {
        const i32 code = bits<i32>(x[i] * inverse + 12582912.0f) - bits<i32>(12582912.0f);
        codes[i] = static_cast<i8>(code);
        sum += code;
    }
    return sum;
}

inline void quantize_group(const float* x, i64 n, i8* codes, float& scale, i32& sum) {
    u32 most = 0;  // magnitudes in the order of their bits, infinity and what is not a number above all others
    for (i64 i = 0; i < n; i++) most = std::max(most, bits<u32>(x[i]) & 0x7fffffffu);
    if (most >= 0x7f800000u) {
        // What is not a number must not become one: it spoils the row's result through the scale.
        std::fill(codes, codes + n, static_cast<i8>(0));
        scale = bits<float>(0x7fc00000u), sum = 0;
        return;
    }
    const float largest = bits<float>(most), ratio = 127.0f / largest;
    // Of numbers so small that this is infinite every code is 0.
    const float inverse = ratio <= std::numeric_limits<float>::max() ? ratio : 0.0f;
    sum = n == GROUP ? to_codes(x, GROUP, inverse, codes) : to_codes(x, n, inverse, codes);
    scale = largest / 127.0f;
}

// The rows of a product in the form that its weights are multiplied with. The rows of a tile lie together, one word of
// 32 bits of each after the other: a float, two bfloat16 or four codes. With the codes of a group goes its scale and,
// beside it, what its sum takes part as: for Q8 and Q8C an integer, -128 times the sum; for Q4 a float, scale times
// the sum.
struct Rows {
    std::vector<u32> words;
    std::vector<float> scales;
    std::vector<u32> sums;

    // Of one row: words, and groups.
    static i64 width(i64 kind, i64 inputs) {
        const i64 k = padded_inputs(kind, inputs);
        return kind == F32 ? k : kind == BF16 ? k / 2 : k / 4;
    }
    static i64 groups(i64 kind, i64 inputs) {
        return kind == F32 || kind == BF16 ? 0 : kind == Q8C ? 1 : padded_inputs(kind, inputs) / GROUP;
    }

    // Make room for so many rows.
    void reserve(i64 kind, i64 inputs, i64 rows) {
        const auto grow = [](auto& v, i64 n) {
            if (static_cast<i64>(v.size()) < n) v.resize(static_cast<size_t>(n));
        };
        grow(words, rows * width(kind, inputs));
        grow(scales, rows * groups(kind, inputs)), grow(sums, rows * groups(kind, inputs));
    }

    // Fill in the rows [first, last) of `rows`.
    void fill(i64 kind, i64 inputs, i64 rows, i64 first, i64 last, const float* x, i64 stride) {
        for (i64 block = first / ROW_BLOCK * ROW_BLOCK; block < last; block += ROW_BLOCK)
            each_tile(kind, block, std::min(rows, block + ROW_BLOCK), [&](const Tile& tile) {
                const i64 m = tile.first;
                for (i64 r = std::max(first, m); r < std::min(last, m + tile.count); r++)
                    fill_row(kind, inputs, x + r * stride, m, tile.count, r - m);
            });
    }

  private:
    void fill_row(i64 kind, i64 inputs, const float* x, i64 tile, i64 count, i64 at) {
        u32* out = words.data() + tile * width(kind, inputs) + at;
        if (kind == F32) {
            for (i64 i = 0; i < inputs; i++) out[i * count] = bits<u32>(x[i]);
        } else if (kind == BF16) {
            const auto spread = [&](i64 from, i64 numbers) {
                u32 words[LANES] = {};
                to_bf16(x + from, numbers, reinterpret_cast<u16*>(words));
                for (i64 w = 0; w < (numbers + 1) / 2; w++) out[(from / 2 + w) * count] = words[w];
            };
            i64 i = 0;
            for (; i + 2 * LANES <= inputs; i += 2 * LANES) spread(i, 2 * LANES);
            if (i < inputs) spread(i, inputs - i);
        } else {
            const i64 size = kind == Q8C ? inputs : GROUP;
            for (i64 g = 0; g < groups(kind, inputs); g++) quantize(kind, inputs, x + g * size, tile, count, at, g);
        }
    }

    void quantize(i64 kind, i64 inputs, const float* x, i64 tile, i64 count, i64 at, i64 group) {
        const i64 place = tile * groups(kind, inputs) + group * count + at, all = width(kind, inputs);
        const i64 group_words = kind == Q8C ? all : GROUP / 4;
        const i64 n = kind == Q8C ? inputs : std::min(GROUP, inputs - group * GROUP);
        u32* out = words.data() + tile * all + group * group_words * count + at;
        i32 sum = 0;
        float scale = 0;
        if (kind != Q8C) {
            alignas(64) i8 codes[GROUP] = {};
            quantize_group(x, n, codes, scale, sum);
            for (i64 i = 0; i < GROUP / 4; i++) std::memcpy(out + i * count, codes + 4 * i, 4);
        } else {
            std::vector<i8> codes(static_cast<size_t>(all * 4));
            quantize_group(x, n, codes.data(), scale, sum);
            for (i64 i = 0; i < all; i++) std::memcpy(out + i * count, codes.data() + 4 * i, 4);
        }
        scales[static_cast<size_t>(place)] = scale;
        sums[static_cast<size_t>(place)] = kind == Q4 ? bits<u32>(scale * static_cast<float>(sum)) : bits<u32>(-128 * sum);
    }
};

// The sums of a tile: in registers as long as every index is known to the compiler, hence the loops that are unrolled.
template <int M, int V>
struct Sums {
    Floats at[M][V];

    Sums() {
#pragma GCC unroll 16
        for (int r = 0; r < M; r++)
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) at[r][v] = zero();
    }

    void copy_to(Floats (&out)[M][V]) const {
#pragma GCC unroll 16
        for (int r = 0; r < M; r++)
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) out[r][v] = at[r][v];
    }
};

// One tile: M rows that lie at `x`, P panels from `w` (panel_stride apart) -> out[M][2 * P] vectors.
template <int M, int P>
inline void tile_f32(const u8* w, i64 panel_stride, const u32* x, i64 width, Fetch fetch, Floats (&out)[M][2 * P]) {
    Sums<M, 2 * P> acc;
    for (i64 i = 0; i < width; i++, x += M, fetch.at += fetch.step) {
        Floats column[2 * P];
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const float* at = reinterpret_cast<const float*>(w + p * panel_stride) + i * PANEL;
            __builtin_prefetch(fetch.at + p * panel_stride, 0, 2);
            __builtin_prefetch(fetch.at + p * panel_stride + 64, 0, 2);
            column[2 * p] = load(at), column[2 * p + 1] = load(at + LANES);
        }
#pragma GCC unroll 16
        for (int r = 0; r < M; r++) {
            const Floats value = all(bits<float>(x[r]));
#pragma GCC unroll 8
            for (int v = 0; v < 2 * P; v++) acc.at[r][v] = fma(column[v], value, acc.at[r][v]);
        }
    }
    acc.copy_to(out);
}

template <int M, int P>
inline void tile_bf16(const u8* w, i64 panel_stride, const u32* x, i64 width, Fetch fetch, Floats (&out)[M][2 * P]) {
    Sums<M, 2 * P> acc;
    for (i64 i = 0; i < width; i++, x += M, fetch.at += fetch.step) {
        Pairs column[2 * P];
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const u16* at = reinterpret_cast<const u16*>(w + p * panel_stride) + i * 2 * PANEL;
            __builtin_prefetch(fetch.at + p * panel_stride, 0, 2);
            __builtin_prefetch(fetch.at + p * panel_stride + 64, 0, 2);
            column[2 * p] = load_pairs(at), column[2 * p + 1] = load_pairs(at + 2 * LANES);
        }
#pragma GCC unroll 16
        for (int r = 0; r < M; r++) {
            const Pair pair = all_pair(reinterpret_cast<const u16*>(x + r));
#pragma GCC unroll 8
            for (int v = 0; v < 2 * P; v++) acc.at[r][v] = dot_pairs(acc.at[r][v], column[v], pair);
        }
    }
    acc.copy_to(out);
}

// Add the integer sums of one group for M rows and one panel, codes of 8 bits.
template <int M>
inline void group_q8(const u8* w, const u32* x, Ints (&sums)[M][2]) {
#pragma GCC unroll QUADS_UNROLLED
    for (int q = 0; q < 8; q++) {
        const Quads left = load_quads(w + q * 4 * PANEL), right = load_quads(w + q * 4 * PANEL + 4 * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            const Four four = all_four(reinterpret_cast<const i8*>(x + q * M + r));
            sums[r][0] = dot_quads(sums[r][0], left, four);
            sums[r][1] = dot_quads(sums[r][1], right, four);
        }
    }
}

template <int M>
inline void group_q4(const u8* w, const u32* x, Ints (&sums)[M][2]) {
#pragma GCC unroll QUADS_UNROLLED
    for (int q = 0; q < 4; q++) {
        const Quads left = load_quads(w + q * 4 * PANEL), right = load_quads(w + q * 4 * PANEL + 4 * LANES);
        const Quads left_low = low_nibbles(left), left_high = high_nibbles(left);
        const Quads right_low = low_nibbles(right), right_high = high_nibbles(right);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            const Four first = all_four(reinterpret_cast<const i8*>(x + 2 * q * M + r));
            const Four second = all_four(reinterpret_cast<const i8*>(x + (2 * q + 1) * M + r));
            sums[r][0] = dot_quads(dot_quads(sums[r][0], left_low, first), left_high, second);
            sums[r][1] = dot_quads(dot_quads(sums[r][1], right_low, first), right_high, second);
        }
    }
}

template <int M>
inline void tile_q8(const u8* w, const u32* x, const float* scales, const u32* start, i64 groups, Fetch fetch,
                    Floats (&out)[M][2]) {
    Sums<M, 2> acc;
    for (i64 g = 0; g < groups; g++, w += Q8_BLOCK, x += GROUP / 4 * M, scales += M, start += M) {
        fetch.advance();
        const u16* scale = reinterpret_cast<const u16*>(w + GROUP * PANEL);
        const Floats left = load_half(scale), right = load_half(scale + LANES);
        Ints sums[M][2];
        // The codes are stored 128 too high.
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) sums[r][0] = sums[r][1] = all_ints(bits<i32>(start[r]));
        group_q8<M>(w, x, sums);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            const Floats own = all(scales[r]);
            acc.at[r][0] = fma(to_floats(sums[r][0]), mul(left, own), acc.at[r][0]);
            acc.at[r][1] = fma(to_floats(sums[r][1]), mul(right, own), acc.at[r][1]);
        }
    }
    acc.copy_to(out);
}

template <int M>
inline void tile_q4(const u8* w, const u32* x, const float* scales, const u32* sum, i64 groups, Fetch fetch,
                    Floats (&out)[M][2]) {
    Sums<M, 2> acc;
    for (i64 g = 0; g < groups; g++, w += Q4_BLOCK, x += GROUP / 4 * M, scales += M, sum += M) {
        fetch.advance();
        const u16* scale = reinterpret_cast<const u16*>(w + GROUP * PANEL / 2);
        const Floats left = load_half(scale), right = load_half(scale + LANES);
        const Floats least_left = load_half(scale + PANEL), least_right = load_half(scale + PANEL + LANES);
        Ints sums[M][2];
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) sums[r][0] = sums[r][1] = all_ints(0);
        group_q4<M>(w, x, sums);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            const Floats own = all(scales[r]), total = all(bits<float>(sum[r]));
            acc.at[r][0] = fma(to_floats(sums[r][0]), mul(left, own), fma(least_left, total, acc.at[r][0]));
            acc.at[r][1] = fma(to_floats(sums[r][1]), mul(right, own), fma(least_right, total, acc.at[r][1]));
        }
    }
    acc.copy_to(out);
}

template <int M>
inline void tile_q8c(const u8* w, const u32* x, const float* scales, const u32* start, i64 width, Fetch fetch,
                     Floats (&acc)[M][2]) {
    Ints sums[M][2];
    for (int r = 0; r < M; r++) sums[r][0] = sums[r][1] = all_ints(bits<i32>(start[r]));
    for (i64 i = 0; i < width; i += GROUP / 4, w += GROUP * PANEL, x += GROUP / 4 * M) {
        fetch.advance();
        group_q8<M>(w, x, sums);
    }
    const float* scale = reinterpret_cast<const float*>(w);
    for (int r = 0; r < M; r++) {
        const Floats own = all(scales[r]);
        acc[r][0] = mul(to_floats(sums[r][0]), mul(load(scale), own));
        acc[r][1] = mul(to_floats(sums[r][1]), mul(load(scale + LANES), own));
    }
}

struct Product {
    i64 kind, inputs, outputs;
    const u8* weights;
    const float* bias;  // or null
    float* out;
    i64 out_stride;
};

template <int M, int P>
inline void write_tile(const Product& product, i64 m, i64 panel, Floats (&acc)[M][2 * P]) {
    for (int v = 0; v < 2 * P; v++) {
        const i64 n = panel * PANEL + v * LANES;
        const i64 count = std::min<i64>(LANES, product.outputs - n);
        if (count <= 0) return;
        for (int r = 0; r < M; r++) {
            float* out = product.out + (m + r) * product.out_stride + n;
            float lanes[LANES];
            store(count == LANES ? out : lanes, acc[r][v]);
            if (count < LANES) std::copy(lanes, lanes + count, out);
            if (product.bias)
                for (i64 i = 0; i < count; i++) out[i] += product.bias[n + i];
        }
    }
}

// The bytes of a panel that are multiplied in one turn of a tile's loop.
inline i64 unit_bytes(i64 kind) {
    return kind == F32 || kind == BF16 ? 4 * PANEL : kind == Q8 ? Q8_BLOCK : kind == Q4 ? Q4_BLOCK : GROUP * PANEL;
}

template <int M, int P>
inline void product_tile(const Product& product, const Rows& rows, const Tile& tile, i64 panel) {
    Floats acc[M][2 * P];
    const i64 stride = panel_bytes(product.kind, product.inputs), m = tile.first;
    const i64 width = Rows::width(product.kind, product.inputs), groups = Rows::groups(product.kind, product.inputs);
    const u8* w = product.weights + panel * stride;
    const u32 *x = rows.words.data() + m * width, *sums = rows.sums.data() + m * groups;
    const float* scales = rows.scales.data() + m * groups;
    const Fetch fetch(w, stride, unit_bytes(product.kind), tile);
    if constexpr (P == 1 && M <= QUANT_TILE) {
        if (product.kind == Q8) tile_q8<M>(w, x, scales, sums, groups, fetch, acc);
        if (product.kind == Q4) tile_q4<M>(w, x, scales, sums, groups, fetch, acc);
        if (product.kind == Q8C) tile_q8c<M>(w, x, scales, sums, width, fetch, acc);
    }
    if (product.kind == F32) tile_f32<M, P>(w, stride, x, width, fetch, acc);
    if (product.kind == BF16) tile_bf16<M, P>(w, stride, x, width, fetch, acc);
    write_tile<M, P>(product, m, panel, acc);
}

template <int M>
inline void product_rows(const Product& product, const Rows& rows, const Tile& tile, i64 panel) {
    if (tile.count == M) return product_tile<M, 1>(product, rows, tile, panel);
    if constexpr (M > 1) product_rows<M - 1>(product, rows, tile, panel);
}

// The share of one thread: every row, panels [first, last).
inline void multiply(const Product& product, const Rows& rows, i64 num_rows, i64 first, i64 last) {
    const bool is_float = product.kind == F32 || product.kind == BF16;
    // One or two rows have too few sums to keep the multipliers busy: take several panels at once.
    if (is_float && num_rows == 1)
        for (; first + 4 <= last; first += 4) product_tile<1, 4>(product, rows, {0, 1, 0, 1}, first);
    if (is_float && num_rows == 2)
        for (; first + 4 <= last; first += 4) product_tile<2, 4>(product, rows, {0, 2, 0, 1}, first);
    for (i64 block = 0; block < num_rows; block += ROW_BLOCK)
        for (i64 panel = first; panel < last; panel++)
            each_tile(product.kind, block, std::min(num_rows, block + ROW_BLOCK),
                      [&](const Tile& tile) { product_rows<FLOAT_TILE>(product, rows, tile, panel); });
}

// Row `n` of packed weights as floats.
inline void unpack_row(i64 kind, i64 inputs, const u8* weights, i64 n, float* out) {
    const u8* w = weights + n / PANEL * panel_bytes(kind, inputs);
    const i64 lane = n % PANEL;
    if (kind == F32) {
        for (i64 i = 0; i < inputs; i++) out[i] = reinterpret_cast<const float*>(w)[i * PANEL + lane];
    } else if (kind == BF16) {
        const u16* pairs = reinterpret_cast<const u16*>(w) + 2 * lane;
        for (i64 i = 0; i < inputs; i++) out[i] = bf16_to_float(pairs[i / 2 * 2 * PANEL + i % 2]);
    } else if (kind == Q8C) {
        const float* scales = reinterpret_cast<const float*>(w + padded_inputs(kind, inputs) * PANEL);
        for (i64 i = 0; i < inputs; i++)
            out[i] = static_cast<float>(w[i / 4 * 4 * PANEL + lane * 4 + i % 4] - 128) * scales[lane];
    } else {
        const i64 code_bytes = kind == Q8 ? GROUP * PANEL : GROUP * PANEL / 2;
        for (i64 i = 0; i < inputs; i++) {
            const u8* block = w + i / GROUP * (kind == Q8 ? Q8_BLOCK : Q4_BLOCK);
            const u16* scales = reinterpret_cast<const u16*>(block + code_bytes);
            const i64 j = i % GROUP;
            const float scale = half_to_float(scales[lane]);
            if (kind == Q8) {
                out[i] = static_cast<float>(block[j / 4 * 4 * PANEL + lane * 4 + j % 4] - 128) * scale;
            } else {
                const u8 both = block[j / 8 * 4 * PANEL + lane * 4 + j % 4];
                const int code = j % 8 < 4 ? both & 15 : both >> 4;
                out[i] = static_cast<float>(code) * scale + half_to_float(scales[PANEL + lane]);
            }
        }
    }
}

// Weights row by row as they come: F32 float, BF16 bfloat16; the others codes [n][k] (Q8 and Q8C signed), with scales
// [n][k / 32] in float16 (Q8C: [n], float) and, for Q4, mins like them. Panels [first, last) are written.
struct Source {
    const void* values;
    const void* scales;
    const void* mins;
};

inline void pack_panels(i64 kind, i64 inputs, i64 outputs, const Source& source, u8* packed, i64 first, i64 last) {
    const i64 bytes = panel_bytes(kind, inputs), groups = (inputs + GROUP - 1) / GROUP;
    for (i64 panel = first; panel < last; panel++) {
        u8* w = packed + panel * bytes;
        std::memset(w, 0, static_cast<size_t>(bytes));
        if (kind == Q8 || kind == Q8C) {  // a code of 0, in the padding too
            const i64 k = padded_inputs(kind, inputs);
            if (kind == Q8C) std::memset(w, 128, static_cast<size_t>(k * PANEL));
            for (i64 g = 0; kind == Q8 && g < groups; g++) std::memset(w + g * Q8_BLOCK, 128, GROUP * PANEL);
        }
        for (i64 lane = 0; lane < std::min(PANEL, outputs - panel * PANEL); lane++) {
            const i64 n = panel * PANEL + lane;
            if (kind == F32) {
                const float* row = static_cast<const float*>(source.values) + n * inputs;
                for (i64 i = 0; i < inputs; i++) reinterpret_cast<float*>(w)[i * PANEL + lane] = row[i];
            } else if (kind == BF16) {
                const u16* row = static_cast<const u16*>(source.values) + n * inputs;
                u16* pairs = reinterpret_cast<u16*>(w) + 2 * lane;
                for (i64 i = 0; i < inputs; i++) pairs[i / 2 * 2 * PANEL + i % 2] = row[i];
            } else if (kind == Q8C) {
                const u8* row = static_cast<const u8*>(source.values) + n * inputs;
                for (i64 i = 0; i < inputs; i++) w[i / 4 * 4 * PANEL + lane * 4 + i % 4] = static_cast<u8>(row[i] ^ 128);
                reinterpret_cast<float*>(w + padded_inputs(kind, inputs) * PANEL)[lane] =
                    static_cast<const float*>(source.scales)[n];
            } else {
                const u8* row = static_cast<const u8*>(source.values) + n * inputs;
                for (i64 i = 0; i < inputs; i++) {
                    u8* block = w + i / GROUP * (kind == Q8 ? Q8_BLOCK : Q4_BLOCK);
                    const i64 j = i % GROUP;
                    if (kind == Q8)
                        block[j / 4 * 4 * PANEL + lane * 4 + j % 4] = static_cast<u8>(row[i] ^ 128);
                    else
                        block[j / 8 * 4 * PANEL + lane * 4 + j % 4] |= static_cast<u8>(j % 8 < 4 ? row[i] : row[i] << 4);
                }
                for (i64 g = 0; g < groups; g++) {
                    u8* block = w + g * (kind == Q8 ? Q8_BLOCK : Q4_BLOCK);
                    u16* scales = reinterpret_cast<u16*>(block + (kind == Q8 ? GROUP * PANEL : GROUP * PANEL / 2));
                    scales[lane] = static_cast<const u16*>(source.scales)[n * groups + g];
                    if (kind == Q4) scales[PANEL + lane] = static_cast<const u16*>(source.mins)[n * groups + g];
                }
            }
        }
    }
}

}  // namespace specdec
