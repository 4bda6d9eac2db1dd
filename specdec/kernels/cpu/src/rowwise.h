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

inline float silu(float x) { return x / (1.0f + exp_float(-x)); }

// gelu in its tanh form: x * (1 + tanh(z)) / 2 = x / (1 + e^(-2z)).
inline float gelu_tanh(float x) {
    const float z = 0.7978845608f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp_float(-2.0f * z));
}

inline void gate(const float* x, i64 size, bool is_silu, float* out) {
    if (is_silu)
        for (i64 i = 0; i < size; i++) out[i] = silu(x[i]) * x[size + i];
    else
        for (i64 i = 0; i < size; i++) out[i] = gelu_tanh(x[i]) * x[size + i];
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
