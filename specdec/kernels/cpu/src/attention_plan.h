// What attention is asked for, and how the work of a step is cut into tasks.
#pragma once

#include <algorithm>
#include <vector>

#include "rowwise.h"
#include "vec.h"

namespace specdec {

inline constexpr i64 CHUNK = 64;
inline constexpr i64 MAX_PAIRS = 192;  // queries times heads of one task; half as many where tasks are few

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

// The queries [first, last) of a row with the KV heads [head, last_head) and the chunks [chunk, last_chunk). `partial`
// is where the chunks' results, then of one head, are kept to be folded later, -1: they are folded at once.
struct AttentionTask {
    i64 row, head, last_head, first, last, chunk, last_chunk, partial;
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

    // Few tasks are cut along the context, so that every thread has some; the bits are the same. Of many, those of a
    // few queries take all heads together, whose entries lie side by side.
    void build(const StepRows& rows, i64 heads, i64 groups, i64 threads, i64 most_partials) {
        kv_heads = groups, repeats = heads / groups;
        tasks.clear(), folds.clear(), partials = pairs = 0;
        i64 tile = std::max<i64>(1, MAX_PAIRS / repeats), tiles = count_tiles(rows, tile);
        if (groups * tiles < 8 * threads) tile = std::max<i64>(1, MAX_PAIRS / 2 / repeats), tiles = count_tiles(rows, tile);
        for (i64 b = 0; b < rows.count; b++) {
            const i64 chunks = (rows.seq_lens[b] + CHUNK - 1) / CHUNK;
            for (i64 q = rows.query_start[b]; q < rows.query_start[b + 1]; q += tile) {
                const i64 last = std::min<i64>(q + tile, rows.query_start[b + 1]);
                const i64 results = (last - q) * repeats * chunks;
                const bool split = threads > 1 && chunks > 1 && groups * tiles < 4 * threads && partials + groups * results <= most_partials;
                const bool together = tiles >= 4 * threads && (last - q) * heads <= MAX_PAIRS / 2;
                const i64 step = together ? groups : 1;
                for (i64 g = 0; g < groups; g += step)
                    if (split)
                        add_pieces(b, g, q, last, chunks, results, threads);
                    else
                        tasks.push_back({b, g, g + step, q, last, 0, chunks, -1});
            }
        }
        // The last of a prompt see most of it: what takes longest begins first.
        if (folds.empty()) std::reverse(tasks.begin(), tasks.end());
    }

  private:
    static i64 count_tiles(const StepRows& rows, i64 tile) {
        i64 tiles = 0;
        for (i64 b = 0; b < rows.count; b++) tiles += (rows.query_start[b + 1] - rows.query_start[b] + tile - 1) / tile;
        return tiles;
    }

    void add_pieces(i64 row, i64 head, i64 first, i64 last, i64 chunks, i64 results, i64 threads) {
        const i64 pieces = std::min(chunks, 4 * threads);
        for (i64 i = 0; i < pieces; i++)
            tasks.push_back({row, head, head + 1, first, last, chunks * i / pieces, chunks * (i + 1) / pieces, partials});
        folds.push_back({row, head, first, last, chunks, partials});
        partials += results, pairs += (last - first) * repeats;
    }
};

}  // namespace specdec
