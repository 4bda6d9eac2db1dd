// Entries of the paged cache: where they lie, asking for them ahead of their use, and turning them about.
#pragma once

#include <algorithm>
#include <utility>

#include "attention_plan.h"
#include "vec.h"

namespace specdec {

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

// Where the entries of a row lie in the caches, one after the other.
class EntryWalk {
  public:
    EntryWalk() = default;
    EntryWalk(const Attention& op, const StepRows& rows, i64 row, i64 entry)
        : table_(rows.tables + row * rows.max_blocks + entry / op.block_size),
          block_size_(op.block_size),
          in_block_(entry % op.block_size),
          stride_(op.kv_heads * entry_bytes(op.cached, op.size)) {}

    // The offset in bytes of the next entry's first head.
    i64 next() {
        const i64 at = (*table_ * block_size_ + in_block_) * stride_;
        if (++in_block_ == block_size_) in_block_ = 0, table_++;
        return at;
    }

  private:
    const i32* table_ = nullptr;
    i64 block_size_ = 0, in_block_ = 0, stride_ = 0;
};

// Asks for the entries that a thread's tasks are about to read, one head of one entry for each that is read, and runs
// LEAD of those ahead of them, across tasks too.
class EntryFetcher {
  public:
    // `task` begins; `after` is the next one, or null.
    void begin(const Attention& op, const StepRows& rows, const AttentionTask& task, const AttentionTask* after) {
        op_ = &op, rows_ = &rows, after_ = after;
        if (!is_ahead_) start(task), lead_ = 0;
        is_ahead_ = after != nullptr;
    }

    void advance() {
        fetch();
        if (lead_ < LEAD) lead_++, fetch();
    }

  private:
    static constexpr i64 LEAD = 160;  // measured: 64 take 1.15 times as long over sequences that lie in memory

    void start(const AttentionTask& task) {
        const i64 bytes = entry_bytes(op_->cached, op_->size);
        const i64 unseen = op_->window ? rows_->positions[task.first] - op_->window + 1 : 0;
        const i64 from = std::max(task.chunk * CHUNK, unseen);
        entries_ = std::min(rows_->positions[task.last - 1] + 1, task.last_chunk * CHUNK) - from;
        walk_ = EntryWalk(*op_, *rows_, task.row, from);
        first_ = task.head * bytes, last_ = task.last_head * bytes, bytes_ = bytes, at_ = last_;
    }

    void fetch() {
        if (at_ == last_) {
            if (entries_ <= 0) {
                if (!after_) return;
                start(*std::exchange(after_, nullptr));
            }
            entry_ = walk_.next(), entries_--, at_ = first_;
        }
        for (i64 i = 0; i < bytes_; i += 64) {
            __builtin_prefetch(op_->keys + entry_ + at_ + i, 0, 2);
            __builtin_prefetch(op_->values + entry_ + at_ + i, 0, 2);
        }
        at_ += bytes_;
    }

    const Attention* op_ = nullptr;
    const StepRows* rows_ = nullptr;
    const AttentionTask* after_ = nullptr;
    bool is_ahead_ = false;  // in the task that begins next
    EntryWalk walk_;
    i64 entries_ = 0, entry_ = 0, first_ = 0, last_ = 0, at_ = 0, bytes_ = 0, lead_ = 0;
};

}  // namespace specdec
