// A run over every entry point, for the sanitizers: random products, attention with trees, a program; on one thread, on a
// few, and on more than there is work for.
#include "program.cpp"

#include <cstdio>
#include <random>

namespace {

std::mt19937 engine(7);
int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); }
float number() { return std::uniform_real_distribution<float>(-1, 1)(engine); }

template <class T>
std::vector<T> filled(i64 count, T (*make)()) {
    std::vector<T> out(static_cast<size_t>(count));
    for (T& each : out) each = make();
    return out;
}

Operand at(const void* p) { return {FIXED, reinterpret_cast<i64>(p), 0}; }

std::vector<u8> packed(void* context, i64 kind, i64 inputs, i64 outputs) {
    const i64 groups = (inputs + GROUP - 1) / GROUP;
    const auto wide = filled<float>(inputs * outputs, number);
    const auto narrow = filled<u16>(inputs * outputs, [] { return float_to_bf16(number()); });
    const auto codes = filled<u8>(inputs * outputs, [] { return static_cast<u8>(pick(0, 15)); });
    const auto halves = filled<u16>(outputs * groups, [] { return static_cast<u16>(pick(0x2000, 0x3c00)); });
    const auto scales = filled<float>(outputs, number);
    std::vector<u8> out(static_cast<size_t>(specdec_packed_bytes(kind, inputs, outputs)));
    const void* values = kind == F32 ? static_cast<const void*>(wide.data()) : kind == BF16 ? narrow.data() : static_cast<const void*>(codes.data());
    specdec_pack(context, kind, inputs, outputs, values, kind == Q8C ? static_cast<const void*>(scales.data()) : halves.data(), halves.data(), out.data());
    return out;
}

void products(void* context) {
    for (int turn = 0; turn < 60; turn++) {
        const i64 kind = turn % 5, inputs = pick(1, 90), outputs = pick(1, 100), rows = pick(1, 40);
        const auto weights = packed(context, kind, inputs, outputs);
        const auto x = filled<float>(rows * inputs, number);
        const auto bias = filled<float>(outputs, number);
        std::vector<float> out(static_cast<size_t>(rows * outputs)), row(static_cast<size_t>(inputs));
        Op op{LINEAR, {at(x.data()), at(weights.data()), at(bias.data()), at(out.data())}, {kind, inputs, outputs, inputs, outputs}, {}};
        Step step{rows, 0, 0, nullptr, {}};
        specdec_run(context, &op, 1, &step);
        const i64 last = outputs - 1;
        specdec_unpack(kind, inputs, weights.data(), &last, 1, row.data());
    }
}

void attention(void* context) {
    for (int turn = 0; turn < 40; turn++) {
        const i64 groups = pick(1, 3), repeats = pick(1, 5), size = pick(1, 5) * 16 - pick(0, 1) * 7, block = pick(1, 16);
        const i64 cached = turn % 3, entry = entry_bytes(cached, size), heads = groups * repeats;
        std::vector<i32> starts{0}, lengths, committed;
        std::vector<i64> positions;
        std::vector<u64> masks;
        i64 most = 0;
        for (int row = pick(1, 3); row > 0; row--) {
            const int context_length = pick(1, 200), nodes = pick(0, 9);
            positions.push_back(context_length - 1), masks.push_back(0);
            const size_t first = masks.size();
            for (int node = 0; node < nodes; node++) {
                const int parent = pick(-1, node - 1);
                masks.push_back((parent < 0 ? 0 : masks[first + static_cast<size_t>(parent)]) | 1ull << node);
                positions.push_back(context_length + __builtin_popcountll(masks.back()) - 1);
            }
            starts.push_back(static_cast<i32>(positions.size()));
            lengths.push_back(context_length + nodes), committed.push_back(context_length);
            most = std::max<i64>(most, (context_length + nodes + block - 1) / block);
        }
        const i64 rows = static_cast<i64>(lengths.size()), tokens = static_cast<i64>(positions.size());
        std::vector<i32> tables(static_cast<size_t>(rows * most));
        for (size_t i = 0; i < tables.size(); i++) tables[i] = static_cast<i32>(tables.size() - 1 - i);
#ifdef PLANTED_FAULT
        tables[0] = static_cast<i32>(tables.size());
#endif
        const size_t bytes = tables.size() * static_cast<size_t>(block * groups * entry);
        std::vector<u8> keys(bytes), values(bytes);
        const auto query = filled<float>(tokens * heads * size, number);
        std::vector<float> out(query.size());
        Op op{ATTEND, {at(query.data()), at(keys.data()), at(values.data()), at(out.data())},
              {heads, groups, size, block, cached, turn % 4 ? 0 : 33, 0, heads * size, heads * size}, {0.1, turn % 5 ? 0.0 : 20.0}};
        Step step{tokens, rows, most, nullptr, {}};
        step.inputs[POSITIONS] = positions.data(), step.inputs[QUERY_START] = starts.data();
        step.inputs[SEQ_LENS] = lengths.data(), step.inputs[COMMITTED] = committed.data();
        step.inputs[TABLES] = tables.data(), step.inputs[MASKS] = masks.data();
        specdec_run(context, &op, 1, &step);
    }
}

void program(void* context) {
    const i64 hidden = 64, inner = 96, vocabulary = 50;
    const auto table = packed(context, Q4, hidden, vocabulary), up = packed(context, BF16, hidden, 2 * inner);
    const auto down = packed(context, Q8, inner, hidden);
    const auto weight = filled<float>(hidden, number);
    // The arena, bytes a row: hidden states, their norm, the inner state, its gated half.
    const i64 h = 0, n = 256, i = 512, g = 1280;
    const Operand none{ABSENT, 0, 0}, ids{INPUT, 0, 0}, result{INPUT, 8, 0};
    const auto arena = [](i64 where) { return Operand{ARENA, where, 0}; };
    const Op ops[] = {
        {EMBED, {ids, at(table.data()), arena(h)}, {Q4, hidden, vocabulary, hidden}, {}},
        {RMS_NORM, {arena(h), at(weight.data()), arena(n)}, {1, hidden, hidden, hidden, 0}, {1e-5}},
        {LINEAR, {arena(n), at(up.data()), none, arena(i)}, {BF16, hidden, 2 * inner, hidden, 2 * inner}, {}},
        {GATE, {arena(i), none, arena(g)}, {inner, 2 * inner, 0, inner, 1}, {}},
        {LINEAR, {arena(g), at(down.data()), none, arena(n)}, {Q8, inner, hidden, inner, hidden}, {}},
        {ADD, {arena(h), arena(n), result}, {hidden, hidden, hidden, hidden}, {}},
    };
    for (const i64 tokens : {1, 40, 3, 17}) {
        std::vector<u8> memory(static_cast<size_t>(tokens * (g + 4 * inner)));
        const auto token_ids = filled<i64>(tokens, [] { return static_cast<i64>(pick(0, 49)); });
        std::vector<float> out(static_cast<size_t>(tokens * hidden));
        Step step{tokens, 0, 0, memory.data(), {}};
        step.inputs[0] = const_cast<i64*>(token_ids.data()), step.inputs[8] = out.data();
        specdec_run(context, ops, 6, &step);
        u8* caches[] = {memory.data()};
        const i64 from = 0, to = tokens / 2;
        specdec_move(context, caches, 1, 64, &from, &to, 1);
    }
}

void sampling(void* context) {
    for (const i64 columns : {1, 63, 5000}) {
        const i64 rows = pick(1, 7);
        auto logits = filled<float>(rows * columns, number);
        logits[0] = columns == 63 ? std::numeric_limits<float>::quiet_NaN() : logits[0];
        std::vector<i64> tokens(static_cast<size_t>(rows));
        std::vector<float> values(tokens.size()), out(logits.size());
        std::vector<double> scores(tokens.size());
        const std::vector<RowFilter> filters(tokens.size(), RowFilter{pick(0, 1) ? 1.0 : 0.9, pick(0, 3), 0.7f, -2.0f});
        const std::vector<NoiseKey> keys(tokens.size(), NoiseKey{1, 2, 3, 4, 5});
        const std::vector<i64> at(tokens.size(), rows - 1);
        const std::vector<double> wide(logits.begin(), logits.end());
        specdec_largest(context, logits.data(), rows, columns, columns, tokens.data(), values.data());
        specdec_logsumexp(context, logits.data(), rows, columns, columns, scores.data());
        specdec_filter(context, logits.data(), rows, columns, columns, filters.data(), out.data());
        for (const void* x : {static_cast<const void*>(logits.data()), static_cast<const void*>(wide.data())})
            specdec_gumbel_argmax(context, x, x == wide.data(), columns, columns, rows, at.data(), keys.data(), tokens.data(), scores.data());
    }
}

}  // namespace

int main() {
    for (const i64 threads : {1, 3, 8}) {
        void* context = specdec_open(threads);
        products(context);
        attention(context);
        program(context);
        sampling(context);
        const std::vector<u8> memory(1 << 16);
        u64 sum = 0;
        specdec_read(context, memory.data(), 1 << 16, &sum);
        specdec_close(context);
    }
    std::puts("done");
}
