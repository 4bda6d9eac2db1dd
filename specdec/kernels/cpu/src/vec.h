// Sixteen lanes at a time, on whatever the machine has: AVX-512, AVX2, or vectors of the compiler's own.
//
// A lane is one output of a product or one key of attention, so a lane's own sum never depends on how many rows,
// keys or threads there are. Every multiply-add of a build goes through `fma`, which rounds in the same way wherever
// it is inlined: that is what makes a row's bits independent of the tile that computed it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace specdec {

using u8 = std::uint8_t;
using i8 = std::int8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;

inline constexpr int LANES = 16;
inline constexpr float LOG2_E = 1.44269504f;

// Where a product of bytes takes many instructions, code that repeats it eightfold takes minutes to compile.
#if defined(__AVX2__) || defined(__AVX512F__)
inline constexpr int QUADS_UNROLLED = 8;
#else
inline constexpr int QUADS_UNROLLED = 1;
#endif

template <class To, class From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

inline float bf16_to_float(u16 x) { return bits<float>(static_cast<u32>(x) << 16); }

// Round to nearest even; a NaN stays one.
inline u16 float_to_bf16(float x) {
    const u32 raw = bits<u32>(x);
    const u32 rounded = (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
    return static_cast<u16>((raw & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

inline float half_to_float(u16 x) {
    const u32 sign = static_cast<u32>(x & 0x8000) << 16;
    const u32 magnitude = x & 0x7fff;
    if (magnitude >= 0x7c00) return bits<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x400) return bits<float>(sign | ((magnitude << 13) + (112u << 23)));
    const float value = static_cast<float>(magnitude) * (1.0f / 16777216.0f);  // subnormal: units of 2^-24
    return sign ? -value : value;
}

// Two signed numbers as the 16-bit halves of a word.
inline i32 halves(i8 low, i8 high) {
    return static_cast<i32>((static_cast<u32>(low) & 0xffff) | static_cast<u32>(high) << 16);
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

using Floats = __m512;
using Ints = __m512i;

#define SPECDEC_HALVES
inline __m256 lower_half(const Floats& x) { return _mm512_castps512_ps256(x); }
inline __m256 upper_half(const Floats& x) { return _mm512_extractf32x8_ps(x, 1); }
inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats nearest(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// a * 2^n for whole n; what is too small for a float becomes 0 at the latest.
inline Floats scale_by_power(Floats a, Floats n) { return _mm512_scalef_ps(a, n); }
inline Floats load_half(const u16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Floats load_bf16(const u16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline Ints all_ints(i32 x) { return _mm512_set1_epi32(x); }
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }

// Quads: 16 lanes of four bytes each.
using Quads = __m512i;
inline Quads load_quads(const u8* p) { return _mm512_loadu_si512(p); }
inline Quads low_nibbles(Quads x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Quads high_nibbles(Quads x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
// The same four signed bytes in every lane; `dot_quads` adds their products with each lane's unsigned ones, exactly.
#if defined(__AVX512VNNI__)
using Four = __m512i;
inline Four all_four(const i8* x) {
    i32 four;
    std::memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}
inline Ints dot_quads(Ints acc, Quads w, Four x) { return _mm512_dpbusd_epi32(acc, w, x); }
#else
struct Four {
    __m512i even, odd;
};
inline Four all_four(const i8* x) {
    return {_mm512_set1_epi32(halves(x[0], x[2])), _mm512_set1_epi32(halves(x[1], x[3]))};
}
inline Ints dot_quads(Ints acc, Quads w, Four x) {
    const __m512i mask = _mm512_set1_epi32(0x00ff00ff);
    const __m512i even = _mm512_and_si512(w, mask), odd = _mm512_and_si512(_mm512_srli_epi16(w, 8), mask);
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(even, x.even));
    return _mm512_add_epi32(acc, _mm512_madd_epi16(odd, x.odd));
}
#endif

// Pairs: 16 lanes of two bfloat16 each. A `Pair` is the same two in every lane; `dot_pairs` adds the two products.
#if defined(__AVX512BF16__)
struct Pairs {
    __m512i both;
};
using Pair = Pairs;
inline Pairs load_pairs(const u16* p) { return {_mm512_loadu_si512(p)}; }
inline Pair all_pair(const u16* x) {
    i32 pair;
    std::memcpy(&pair, x, 4);
    return {_mm512_set1_epi32(pair)};
}
inline Floats dot_pairs(Floats acc, Pairs w, Pair x) { return _mm512_dpbf16_ps(acc, (__m512bh)w.both, (__m512bh)x.both); }
#else
#define SPECDEC_SPLIT_PAIRS
inline void split_pairs(const u16* p, Floats& even, Floats& odd) {
    const __m512i both = _mm512_loadu_si512(p);
    const __m512i mask = _mm512_set1_epi32(static_cast<i32>(0xffff0000));
    even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)), odd = _mm512_castsi512_ps(_mm512_and_si512(both, mask));
}
#endif

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct Floats {
    __m256 a, b;
};
struct Ints {
    __m256i a, b;
};
using Quads = Ints;

#define SPECDEC_HALVES
inline __m256 lower_half(const Floats& x) { return x.a; }
inline __m256 upper_half(const Floats& x) { return x.b; }
inline Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
inline Floats fma(Floats x, Floats y, Floats z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Floats mul(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats divide(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Floats larger(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Floats nearest(Floats x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline Floats scale_by_power(Floats x, Floats n) {
    // n is -127 at least, where the power is taken as 0.
    const auto half = [](__m256 a, __m256 power) {
        const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127)), 23);
        return _mm256_mul_ps(a, _mm256_castsi256_ps(bits));
    };
    return {half(x.a, n.a), half(x.b, n.b)};
}
inline __m128i load_eight(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline Floats load_half(const u16* p) { return {_mm256_cvtph_ps(load_eight(p)), _mm256_cvtph_ps(load_eight(p + 8))}; }
inline Floats load_bf16(const u16* p) {
    const auto wide = [](const u16* q) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_eight(q)), 16));
    };
    return {wide(p), wide(p + 8)};
}
inline Ints all_ints(i32 x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

inline Quads load_quads(const u8* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline Quads low_nibbles(Quads x) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline Quads high_nibbles(Quads x) { return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
struct Four {
    __m256i even, odd;
};
inline Four all_four(const i8* x) {
    return {_mm256_set1_epi32(halves(x[0], x[2])), _mm256_set1_epi32(halves(x[1], x[3]))};
}
inline Ints dot_quads(Ints acc, Quads w, Four x) {
    const __m256i mask = _mm256_set1_epi32(0x00ff00ff);
    const auto half = [&](__m256i sum, __m256i four) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_and_si256(four, mask), x.even));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_and_si256(_mm256_srli_epi16(four, 8), mask), x.odd));
    };
    return {half(acc.a, w.a), half(acc.b, w.b)};
}

#define SPECDEC_SPLIT_PAIRS
inline void split_pairs(const u16* p, Floats& even, Floats& odd) {
    const Quads both = load_quads(reinterpret_cast<const u8*>(p));
    const __m256i mask = _mm256_set1_epi32(static_cast<i32>(0xffff0000));
    const auto low = [](__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); };
    const auto high = [&](__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, mask)); };
    even = {low(both.a), low(both.b)}, odd = {high(both.a), high(both.b)};
}

#else

// Vectors of the compiler's own, which it cuts into what the machine has.
using Floats __attribute__((vector_size(64))) = float;
using Ints __attribute__((vector_size(64))) = i32;
using Quads __attribute__((vector_size(64))) = u32;  // the first of a lane's four bytes is the lowest
using Shorts __attribute__((vector_size(32))) = u16;

inline Floats zero() { return Floats{}; }
inline Floats all(float x) { return x - Floats{}; }
inline Floats load(const float* p) {
    Floats out;
    std::memcpy(&out, p, sizeof(out));
    return out;
}
inline void store(float* p, const Floats& x) { std::memcpy(p, &x, sizeof(x)); }
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
#ifdef __FP_FAST_FMAF
    Floats out;
    for (int i = 0; i < LANES; i++) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return out;
#else
    return a * b + c;
#endif
}
inline Floats mul(const Floats& a, const Floats& b) { return a * b; }
inline Floats add(const Floats& a, const Floats& b) { return a + b; }
inline Floats divide(const Floats& a, const Floats& b) { return a / b; }
inline Floats larger(const Floats& a, const Floats& b) { return a > b ? a : b; }
inline Floats nearest(const Floats& a) { return (a + 12582912.0f) - 12582912.0f; }
inline Floats scale_by_power(const Floats& a, const Floats& n) {
    const Ints power = __builtin_convertvector(n == n ? n : Floats{}, Ints);
    return a * bits<Floats>((power + 127) << 23);
}
inline Floats load_half(const u16* p) {
    Floats out;
    for (int i = 0; i < LANES; i++) out[i] = half_to_float(p[i]);
    return out;
}
inline Floats load_bf16(const u16* p) {
    Shorts narrow;
    std::memcpy(&narrow, p, sizeof(narrow));
    return bits<Floats>(__builtin_convertvector(narrow, Quads) << 16);
}
inline Ints all_ints(i32 x) { return x - Ints{}; }
inline Floats to_floats(const Ints& x) { return __builtin_convertvector(x, Floats); }

inline Quads load_quads(const u8* p) {
    Quads out;
    std::memcpy(&out, p, sizeof(out));
    return out;
}
inline Quads low_nibbles(const Quads& x) { return x & 0x0f0f0f0fu; }
inline Quads high_nibbles(const Quads& x) { return (x >> 4) & 0x0f0f0f0fu; }
struct Four {
    i8 at[4];
};
inline Four all_four(const i8* x) { return {{x[0], x[1], x[2], x[3]}}; }
inline Ints dot_quads(const Ints& acc, const Quads& w, Four x) {
    const auto byte = [&](int j) { return bits<Ints>((w >> (8 * j)) & 255u) * static_cast<i32>(x.at[j]); };
    return acc + byte(0) + byte(1) + byte(2) + byte(3);
}

#define SPECDEC_SPLIT_PAIRS
inline void split_pairs(const u16* p, Floats& even, Floats& odd) {
    const Quads both = load_quads(reinterpret_cast<const u8*>(p));
    even = bits<Floats>(both << 16), odd = bits<Floats>(both & 0xffff0000u);
}

#endif

#ifdef SPECDEC_SPLIT_PAIRS
struct Pairs {
    Floats even, odd;
};
using Pair = Pairs;
inline Pairs load_pairs(const u16* p) {
    Pairs pairs;
    split_pairs(p, pairs.even, pairs.odd);
    return pairs;
}
inline Pair all_pair(const u16* x) { return {all(bf16_to_float(x[0])), all(bf16_to_float(x[1]))}; }
inline Floats dot_pairs(const Floats& acc, const Pairs& w, const Pair& x) {
    return fma(w.odd, x.odd, fma(w.even, x.even, acc));
}
#endif

// 2^x for x at most 128, where it is infinite; the relative error is about 2e-7, and less than 2^-126 counts as 0.
inline Floats exp2_up_to_128(Floats x) {
    // The order of the operands lets a NaN through.
    const Floats bounded = larger(all(-127.0f), x);
    const Floats power = nearest(bounded), rest = add(bounded, mul(power, all(-1.0f)));
    Floats sum = all(1.326472731e-3f);
    for (const float term : {9.671512991e-3f, 5.550733581e-2f, 2.402224243e-1f, 6.931470037e-1f, 1.0f})
        sum = fma(sum, rest, all(term));
    return scale_by_power(sum, power);
}

// 16 numbers as bfloat16, rounded to nearest even; -> what they are now.
inline Floats store_rounded(u16* p, Floats x) {
#if defined(__AVX512BF16__)
    const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
    std::memcpy(p, &rounded, sizeof(rounded));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
#else
    float lanes[LANES];
    store(lanes, x);
    for (int i = 0; i < LANES; i++) p[i] = float_to_bf16(lanes[i]);
    return load_bf16(p);
#endif
}

inline void store_bf16(u16* p, Floats x) { store_rounded(p, x); }

inline void to_bf16(const float* x, i64 count, u16* out) {
    i64 i = 0;
    for (; i + LANES <= count; i += LANES) store_bf16(out + i, load(x + i));
    for (; i < count; i++) out[i] = float_to_bf16(x[i]);
}

// 16 words, each of a number of `low` in its lower half and one of `high`.
inline void pair_up(const u16* __restrict low, const u16* __restrict high, u32* __restrict out) {
    for (int i = 0; i < LANES; i++) out[i] = low[i] | static_cast<u32>(high[i]) << 16;
}

// The lanes put together by `f`, in one fixed order: each of the upper half with its own of the lower, and so on.
#ifdef SPECDEC_HALVES
template <class F>
inline float reduce_lanes(const Floats& x, F f) {
    const __m256 eight = f(lower_half(x), upper_half(x));
    const __m128 four = f(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = f(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(f(two, _mm_movehdup_ps(two)));
}
struct Sum {
    __m256 operator()(__m256 a, __m256 b) const { return _mm256_add_ps(a, b); }
    __m128 operator()(__m128 a, __m128 b) const { return _mm_add_ps(a, b); }
};
struct Larger {
    __m256 operator()(__m256 a, __m256 b) const { return _mm256_max_ps(b, a); }
    __m128 operator()(__m128 a, __m128 b) const { return _mm_max_ps(b, a); }
};
#else
template <class F>
inline float reduce_lanes(const Floats& x, F f) {
    float lanes[LANES];
    store(lanes, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = f(lanes[i], lanes[i + width]);
    return lanes[0];
}
struct Sum {
    float operator()(float a, float b) const { return a + b; }
};
struct Larger {
    float operator()(float a, float b) const { return b > a ? b : a; }
};
#endif

inline float sum_lanes(const Floats& x) { return reduce_lanes(x, Sum{}); }
inline float largest_lane(const Floats& x) { return reduce_lanes(x, Larger{}); }

}  // namespace specdec
