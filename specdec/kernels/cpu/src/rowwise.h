// Ops whose every row is a matter of its own.
#pragma once

#include "linear.h"
#include "vec.h"

namespace specdec {

// One vector of `size`: x / rms(x) * weight, or * (1 + weight).
inline void rms_norm(const float* x, const float* weight, float eps, bool unit_offset, i64 size, float* out) {
    Floats squares = zero();
    i64 i = 0;
    for (; i + LANES <= size; i += LANES) squares = fma(load(x + i), load(x + i), squares);
    float rest = 0;
    for (; i < size; i++) rest += x[i] * x[i];
    const float scale = 1.0f / std::sqrt((sum_lanes(squares) + rest) / static_cast<float>(size) + eps);
    if (unit_offset)
        for (i64 j = 0; j < size; j++) out[j] = x[j] * scale * (1.0f + weight[j]);
    else
        for (i64 j = 0; j < size; j++) out[j] = x[j] * scale * weight[j];
}

// Rotate the first 2 * half entries of each head, the halves convention.
inline void rotate(const float* x, const float* cos, const float* sin, i64 heads, i64 size, i64 half, float* out) {
    for (i64 h = 0; h < heads; h++, x += size, out += size) {
        for (i64 i = 0; i < half; i++) {
            const float first = x[i], second = x[half + i];
            out[i] = first * cos[i] - second * sin[i];
            out[half + i] = second * cos[i] + first * sin[i];
        }
        for (i64 i = 2 * half; i < size; i++) out[i] = x[i];
    }
}

// x / (1 + 2^-y)
inline Floats sigmoid_times(Floats x, Floats y) {
    const Floats bounded = larger(all(-128.0f), y);
    return divide(x, add(all(1.0f), exp2_up_to_128(mul(bounded, all(-1.0f)))));
}

inline Floats silu(Floats x) { return sigmoid_times(x, mul(x, all(LOG2_E))); }

// gelu in its tanh form: x * (1 + tanh(z)) / 2 = x / (1 + e^(-2z)), z = 0.798 (x + 0.0447 x^3)
inline Floats gelu_tanh(Floats x) {
    constexpr float factor = 2.0f * LOG2_E * 0.7978845608f;
    return sigmoid_times(x, mul(x, fma(mul(x, x), all(factor * 0.044715f), all(factor))));
}

inline void gate(const float* x, i64 size, bool is_silu, float* out) {
    const auto lanes = [&](const float* gates, const float* values, float* to) {
        store(to, mul(is_silu ? silu(load(gates)) : gelu_tanh(load(gates)), load(values)));
    };
    i64 i = 0;
    for (; i + LANES <= size; i += LANES) lanes(x + i, x + size + i, out + i);
    if (i == size) return;
    float gates[LANES] = {}, values[LANES] = {};
    std::copy(x + i, x + size, gates), std::copy(x + size + i, x + 2 * size, values);
    lanes(gates, values, gates);
    std::copy(gates, gates + size - i, out + i);
}

// How keys and values lie in the cache. An int8 entry is followed by its scale, a float.
enum Cached : i64 { CACHED_F32 = 0, CACHED_BF16 = 1, CACHED_INT8 = 2 };

inline i64 entry_bytes(i64 cached, i64 size) {
    return cached == CACHED_F32 ? 4 * size : cached == CACHED_BF16 ? 2 * size : size + 4;
}

inline void write_entry(i64 cached, const float* x, i64 size, u8* out) {
    if (cached == CACHED_F32) {
        std::memcpy(out, x, static_cast<size_t>(4 * size));
    } else if (cached == CACHED_BF16) {
        u16* rounded = reinterpret_cast<u16*>(out);
        for (i64 i = 0; i < size; i++) rounded[i] = float_to_bf16(x[i]);
    } else {
        float scale;
        i32 sum;
        quantize_group(x, size, reinterpret_cast<i8*>(out), scale, sum);
        std::memcpy(out + size, &scale, 4);
    }
}

inline void read_entry(i64 cached, const u8* entry, i64 size, float* out) {
    if (cached == CACHED_F32) {
        std::memcpy(out, entry, static_cast<size_t>(4 * size));
    } else if (cached == CACHED_BF16) {
        const u16* raw = reinterpret_cast<const u16*>(entry);
        for (i64 i = 0; i < size; i++) out[i] = bf16_to_float(raw[i]);
    } else {
        float scale;
        std::memcpy(&scale, entry + size, 4);
        const i8* codes = reinterpret_cast<const i8*>(entry);
        for (i64 i = 0; i < size; i++) out[i] = static_cast<float>(codes[i]) * scale;
    }
}

}  // namespace specdec
