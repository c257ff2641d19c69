// Decoding with causal summarised attention: finished blocks are kept with the summaries of all their cells, and a new
// query reads those of its cell in each of them.
//
// A query gathers logits, and the rows that they weigh, from its diagonal block, the first keys, exact keys and summaries,
// and opened clusters; one softmax over all of them is its output. The choices are those of summarised_causal.h.
#pragma once

#include "summarised_causal.h"

namespace hrf {

// A finished block of one batch item, for its H heads.
struct Kept {
    void *factor, *centres, *halves, *pooled;  // of Cells: (H, D, D), (H, D, padded G), (H, padded G), (H,)
    void *means, *extents, *mean_spreads;      // (H, G, D), (H, C, D), (H, C)
    void *summaries, *biases;                  // (H, G, C, D + W), (H, G, C)
    int32_t* key_order;   // (H, keys): position after first_key
    int64_t* key_bounds;  // (H, C + 1)
    int64_t* starts;      // (H · G + 1,): where the exact keys of each cell begin
    int32_t* exact;       // positions after first_key, from left to right, so that steps read memory in its order
    int64_t levels, key_levels, first_key, n_keys;
};

struct KeepCall {
    CausalCall causal;  // of one batch item without queries; members are `earlier`
    int64_t j;          // block before boundary j · base
    Kept kept;          // receives everything but `exact`
};

// Compute what a block keeps. Sizes of lists go to kept.starts + 1, one per cell.
template <class T>
void keep_block(const KeepCall& call, Found& found) {
    const CausalCall& a = call.causal;
    const Kept& kept = call.kept;
    const Block block(a, call.j);
    const Sizes sizes = sizes_of(a, block);
    const int64_t d = a.dim, g = sizes.groups(), c = sizes.clusters(), row_size = a.row(), n_keys = block.n_keys();
    std::vector<Found> parts(a.n);
    parallel(a.n, int(a.threads), [&](int64_t head, int) {
        static thread_local Arena arena;
        arena.reset(bytes_to_serve<T>(a, block));
        const Row<T> row(a, head);
        BlockHead<T> h(arena, a, block, head);
        Cells<T> cells(arena, d, g);
        const auto mark = arena.mark();
        make_cells(a, sizes, row, block, arena, h, cells);
        arena.back_to(mark);
        cluster_block(a, sizes, row, block, arena, h, false);
        arena.back_to(mark);
        const auto part = [&](void* all, int64_t n) { return static_cast<T*>(all) + head * n; };
        copy(cells.factor, d * d, part(kept.factor, d * d)),
            copy(cells.centres, d * padded(g), part(kept.centres, d * padded(g)));
        copy(cells.halves, padded(g), part(kept.halves, padded(g))), *part(kept.pooled, 1) = cells.pooled;
        copy(h.means, g * d, part(kept.means, g * d)), copy(h.extents, c * d, part(kept.extents, c * d));
        copy(h.mean_spreads, c, part(kept.mean_spreads, c));
        copy(h.key_order, n_keys, kept.key_order + head * n_keys),
            copy(h.key_bounds, c + 1, kept.key_bounds + head * (c + 1));
        BlockScratch<T> s(arena, sizes);
        for (int64_t start = 0; start < g; start += GROUPS) {
            const int64_t some = std::min(GROUPS, g - start);
            summarise_for_cells(a, sizes, block, h, cells, start, some, s);
            copy(s.summaries, some * c * row_size, part(kept.summaries, g * c * row_size) + start * c * row_size);
            copy(s.biases, some * c, part(kept.biases, g * c) + start * c);
            for (int64_t i = 0; i < some; ++i) {
                kept.starts[head * g + start + i + 1] = s.sizes[i];
                int32_t *list = s.lists + i * sizes.n_keys, *end = list + s.sizes[i];
                std::transform(list, end, list, [&](int32_t r) { return h.key_order[r]; });
                std::sort(list, end);
                parts[head].exact.insert(parts[head].exact.end(), list, end);
            }
        }
    });
    for (const Found& part : parts) found.exact.insert(found.exact.end(), part.exact.begin(), part.exact.end());
}

// New tokens of a batch, all in the diagonal block of their item: `length` of them from the first one on, out of `tokens`.
struct StepCall {
    int64_t dim, width, own_dim, own_width;  // D and W are multiples of PAD; new tokens have d and w numbers
    int64_t n, batch, per_key, tokens, first, length, room, n_earlier, base;  // `room` for keys
    const void *x, *new_keys, *new_values;  // (N, tokens, d), (N / per_key, tokens, d), (N / per_key, tokens, w)
    const uint8_t* real;                    // (B, tokens): what is no padding; or null
    void *y, *v;                            // (N / per_key, room, D), (N / per_key, room, W): receive the new tokens
    void *earlier, *earlier_masses;         // (N, n_earlier, D), (N, n_earlier): receive every EVERY-th query
    int64_t* counts;                        // of each batch item: its tokens so far, without padding
    const int64_t* items;                   // (B + 1,): where the blocks of each item begin
    const Kept* kept;                       // all blocks, each item's from left to right
    void* out;                              // (N, tokens, W); zeros for padding
    double root, opening;
    int64_t threads, is_double;

    bool hidden(int64_t item, int64_t token) const { return real && !real[item * tokens + token]; }
};

constexpr int64_t AHEAD = 12;  // rows that are asked for before they are read: they lie anywhere in memory

// Ask for the next n numbers of a row.
template <class T>
inline void fetch(const T* row, int64_t n) {
    for (int64_t k = 0; k < n; k += 64 / int64_t(sizeof(T))) __builtin_prefetch(row + k);
}

// Logits of a query, times log₂ e, and the rows that they weigh.
template <class T>
struct Gathered {
    T* logits;
    const T** values;
    int64_t count = 0, summed = 0;
    T top = LOWEST<T>, mass = 0;  // of the first `summed`: Σ 2^(logit − top)

    Gathered(Arena& arena, int64_t most) : logits(arena.lend<T>(padded(most))), values(arena.lend<const T*>(most)) {}
    static size_t bytes(int64_t most) { return Arena::room<T>(padded(most)) + Arena::room<const T*>(most); }

    void add(T logit, const T* value) { logits[count] = logit, values[count++] = value; }
    void sum() {
        if (summed == count) return;
        raise(*std::max_element(logits + summed, logits + count));
        for (; summed < count; summed += lanes<T>) {
            for (int64_t j = count; j < summed + lanes<T>; ++j) logits[j] = LOWEST<T>;
            mass += hrf::sum<T>(exp2<T>(load(logits + summed) - top));
        }
        summed = count;
    }
    void raise(T least) {
        if (least <= top) return;
        mass *= exp2_one<T>(top - least), top = least;
    }
};

// out = factor · Σ weight · row, over n rows, a multiple of 4, of `width` numbers: V vectors at a time, from `first` on.
template <int V, class T>
int64_t add_rows(const T* weights, const T* const* rows, int64_t n, int64_t first, int64_t width, T factor, T* out) {
    constexpr int N = lanes<T>, CHAINS = 4;  // sums that do not wait for each other
    for (; first + V * N <= width; first += V * N) {
        vec<T> total[CHAINS][V] = {};
        for (int64_t j = 0; j < n; j += CHAINS)
            for (int i = 0; i < CHAINS; ++i)
                for (int c = 0; c < V; ++c) total[i][c] += weights[j + i] * load(rows[j + i] + first + c * N);
        for (int c = 0; c < V; ++c)
            store(out + first + c * N, (total[0][c] + total[1][c] + (total[2][c] + total[3][c])) * factor);
    }
    return first;
}

// Read a block: exact keys and summaries of the query's cell, and the clusters that the query opens.
template <class T>
void read_kept(const StepCall& a, const Kept& kept, int64_t head, const T* x, const T* y, const T* v, T* z, T* own,
               Gathered<T>& found) {
    const int64_t d = a.dim, w = a.width, g = int64_t(1) << kept.levels, c = int64_t(1) << kept.key_levels, row = d + w;
    const auto part = [&](const void* all, int64_t n) { return static_cast<const T*>(all) + head * n; };
    Cells<T> cells(const_cast<T*>(part(kept.factor, d * d)), const_cast<T*>(part(kept.centres, d * padded(g))),
                   const_cast<T*>(part(kept.halves, padded(g))), *part(kept.pooled, 1));
    int32_t cell;
    find_cells(x, 1, d, g, cells, z, own, &cell);
    const T width = width_in(cells, d, g, cell, z);
    y += kept.first_key * d, v += kept.first_key * w;
    const int32_t *order = kept.key_order + head * kept.n_keys, *list = kept.exact + kept.starts[head * g + cell],
                  *end = kept.exact + kept.starts[head * g + cell + 1];
    const int64_t* bounds = kept.key_bounds + head * (c + 1);
    const auto add_key = [&](int64_t j) { found.add(T(a.root * LOG2E) * dot(x, y + j * d, d), v + j * w); };
    const auto fetch_key = [&](int64_t j) { fetch(y + j * d, d), fetch(v + j * w, w); };
    for (const int32_t* j = list; j < std::min(list + AHEAD, end); ++j) fetch_key(*j);
    for (const int32_t* j = list; j < end; ++j) {
        if (j + AHEAD < end) fetch_key(j[AHEAD]);
        add_key(*j);
    }
    found.sum();
    const T *summaries = part(kept.summaries, g * c * row) + cell * c * row,
            *biases = part(kept.biases, g * c) + cell * c;
    const T *mean = part(kept.means, g * d) + cell * d, *extents = part(kept.extents, c * d),
            *spreads = part(kept.mean_spreads, c);
    T *logits = own, *variances = own + padded(c), top = LOWEST<T>;
    for (int64_t k = 0; k < d; ++k) z[k] = x[k] - mean[k];
    for (int64_t i = 0; i < c; ++i) {
        logits[i] = biases[i] + T(LOG2E) * dot(x, summaries + i * row, d);
        const T span = dot(z, extents + i * d, d);
        variances[i] = width * spreads[i] + span * span;
        top = std::max(top, logits[i]);
    }
    found.raise(top);
    fill(logits + c, padded(c) - c, LOWEST<T>), fill(variances + c, padded(c) - c, T(0));
    vec<T> total{};
    for (int64_t i = 0; i < c; i += lanes<T>) total += exp2<T>(load(logits + i) - found.top);
    const T limit = T(a.opening) * (found.mass + hrf::sum<T>(total));
    for (int64_t i = 0; i < c; i += lanes<T>)
        store(variances + i, exp2<T>(load(logits + i) - found.top) * deviation<T>(load(variances + i)));
    for (int64_t i = 0; i < c; ++i) {
        if (logits[i] < T(0.1) * LOWEST<T>) continue;  // all keys are exact
        if (variances[i] < limit) {
            found.add(logits[i], summaries + i * row + d);
            continue;
        }
        for (int64_t r = bounds[i]; r < bounds[i + 1]; ++r) fetch_key(order[r]);
        for (int64_t r = bounds[i]; r < bounds[i + 1]; ++r)
            if (!std::binary_search(list, end, order[r])) add_key(order[r]);
    }
    found.sum();
}

// Write the new keys and values behind the others.
template <class T>
void add_tokens(const StepCall& a) {
    const int64_t key_rows = a.n / a.per_key;
    for (int64_t row = 0; row < key_rows; ++row) {
        const int64_t item = row / (key_rows / a.batch);
        int64_t place = row * a.room + a.counts[item];
        for (int64_t t = a.first; t < a.first + a.length; ++t) {
            if (a.hidden(item, t)) continue;
            const int64_t own = row * a.tokens + t;
            copy(static_cast<const T*>(a.new_keys) + own * a.own_dim, a.own_dim, static_cast<T*>(a.y) + place * a.dim);
            copy(static_cast<const T*>(a.new_values) + own * a.own_width, a.own_width,
                 static_cast<T*>(a.v) + place * a.width);
            ++place;
        }
    }
}

// Compute the new queries of a row.
template <class T>
void steps_of_row(const StepCall& a, int64_t row, Arena& arena) {
    const int64_t heads = a.n / a.batch, item = row / heads, d = a.dim, w = a.width;
    const T *y = static_cast<const T*>(a.y) + row / a.per_key * a.room * d,
            *v = static_cast<const T*>(a.v) + row / a.per_key * a.room * w;
    const int64_t most = a.counts[item] + a.length;
    T *x = arena.lend<T>(d), *z = arena.lend<T>(d), *own = arena.lend<T>(4 * padded(most));
    const auto mark = arena.mark();
    fill(x, d, T(0));
    for (int64_t t = a.first, position = a.counts[item]; t < a.first + a.length; ++t) {
        const int64_t first = position / a.base * a.base, place = row * a.tokens + t;
        const T* query = static_cast<const T*>(a.x) + place * a.own_dim;
        T* out = static_cast<T*>(a.out) + place * w;
        if (a.hidden(item, t)) {
            fill(out, w, T(0));
            continue;
        }
        scaled(query, a.own_dim, T(a.root), x);
        Gathered<T> found(arena, 2 * most + 64);
        const auto meet = [&](int64_t j) { found.add(T(a.root * LOG2E) * dot(x, y + j * d, d), v + j * w); };
        for (int64_t j = 0; j < (first ? SINK : 0); ++j) meet(j);
        for (int64_t j = first; j <= position; ++j) {
            fetch(v + j * w, w);
            meet(j);
        }
        found.sum();
        for (int64_t b = a.items[item]; b < a.items[item + 1]; ++b)
            read_kept(a, a.kept[b], row % heads, x, y, v, z, own, found);
        for (int64_t j = 0; j < found.count; j += lanes<T>)
            store(found.logits + j, exp2<T>(load(found.logits + j) - found.top));
        int64_t n = found.count, done = 0;
        for (; n % 4; ++n) found.logits[n] = 0, found.values[n] = found.values[0];
        const T factor = T(1) / found.mass;
        done = add_rows<4>(found.logits, found.values, n, done, w, factor, out);
        done = add_rows<2>(found.logits, found.values, n, done, w, factor, out);
        add_rows<1>(found.logits, found.values, n, done, w, factor, out);
        if (position % EVERY == 0) {
            const int64_t member = row * a.n_earlier + position / EVERY;
            copy(query, a.own_dim, static_cast<T*>(a.earlier) + member * d);
            static_cast<T*>(a.earlier_masses)[member] = found.top + std::log2(found.mass);
        }
        arena.back_to(mark);
        ++position;
    }
}

template <class T>
void summarised_steps(const StepCall& a) {
    add_tokens<T>(a);
    const int64_t most = *std::max_element(a.counts, a.counts + a.batch) + a.length;
    parallel(a.n, int(a.threads), [&](int64_t row, int) {
        static thread_local Arena arena;
        arena.reset(2 * Arena::room<T>(a.dim) + Arena::room<T>(4 * padded(most)) + Gathered<T>::bytes(2 * most + 64));
        steps_of_row<T>(a, row, arena);
    });
    for (int64_t item = 0; item < a.batch; ++item)
        for (int64_t t = a.first; t < a.first + a.length; ++t) a.counts[item] += !a.hidden(item, t);
}

}  // namespace hrf
