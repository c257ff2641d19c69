// Summarised attention: statistics of groups and clusters, summaries, and what both passes share.
//
// The formulas are those of summarised/plan.py and summarised/read.py, with powers of 2. A head is prepared once: its
// queries sorted by group, its keys and values by cluster. Then blocks of GROUPS groups go through score, summarise and
// read, with all that a block needs in the cache. Tiles have a row per key or cluster and a column per group or query.
#pragma once

#include "trees.h"

namespace hrf {

constexpr int64_t GROUPS = 32;               // groups at a time
constexpr int64_t SOME_KEYS = 64;            // keys at a time
constexpr double LARGEST_TILT = 10 * LOG2E;  // of γd²/2, as in read.py, for powers of 2
constexpr double LARGEST_VARIANCE = 160;     // of γd², as in read.py
constexpr double ROOM = 24;                  // weights up to 2²⁴ are not rescaled
constexpr double FAR = 100;                  // masses of queries are compared up to 2^FAR

// Numbers of queries and keys of a head, their dimensions, and how often trees halve them.
struct Sizes {
    int64_t length, n_keys, dim, width, levels, key_levels;

    int64_t groups() const { return int64_t(1) << levels; }
    int64_t clusters() const { return int64_t(1) << key_levels; }
    int64_t columns() const { return padded(dim); }                  // D
    int64_t row() const { return padded(dim) + padded(width); }      // D + W: a key and its value
    bool images() const { return n_keys < columns() * clusters(); }  // then sums of images cost less than a product
    int64_t largest_group() const { return padded((length >> levels) + 1); }
    int64_t largest_cluster() const { return (n_keys >> key_levels) + 1; }
};

// Everything Python passes, in its order: 8 bytes each, the sizes first.
struct SummarisedCall : Sizes {
    const void *x, *y, *v;                // (N, L, d), (N, S, d), (N, S, d_v)
    const uint8_t *queries, *keys;        // (N, L), (N, S): 0 for padding
    const void *limits, *opening_limits;  // (N,): log₂ of the relative error of a key; share of a query's mass
    void* out;                            // (N, L, d_v)
    void* log_masses;                     // (N, L): log₂ Σ weights of each query
    int32_t *order, *key_order;           // (N, L), (N, S): token in each row
    int64_t *bounds, *key_bounds;         // (N, G + 1), (N, C + 1)
    int64_t *sizes, *openings, *met;      // (N, G): exact keys, opened clusters, and keys in these
    double root;                          // √scale
    int64_t n, keep, threads, is_double;
};

// A prepared head: its groups of queries and its clusters of keys.
template <class T>
struct Head {
    int64_t n, n_keys;                          // without padding
    T *queries, *keys;                          // by group (n, D); by cluster, keys with their values (n_keys, D + W)
    T *means, *widths, *query_widths, *metric;  // rᵢ (G, D), γᵢ, γ(x), Σ_δ (D, D)
    T *centres, *spreads, *log_spreads, *mean_spreads;  // ȳ (C, D); d² log₂ e / 2 and log₂ √d² by key; by cluster
    T* images;                                          // Σ_δ(y − ȳ) by key, or null
    T* extents = nullptr;  // longest direction of each cluster, as long as the deviation of its keys (C, D), or null
    int32_t *order, *key_order;
    int64_t *bounds, *key_bounds;

    static size_t bytes(const Sizes& a) {
        const int64_t d = a.columns(), g = a.groups(), c = a.clusters();
        return Arena::room<T>(a.length * d) + Arena::room<T>(a.n_keys * a.row()) + Arena::room<T>(g * d) +
               Arena::room<T>(g) + Arena::room<T>(a.length) + Arena::room<T>(d * d) + Arena::room<T>(c * d) +
               2 * Arena::room<T>(a.n_keys) + Arena::room<T>(c) + Arena::room<T>(a.images() ? a.n_keys * d : 0);
    }
    Head(Arena& arena, const Sizes& a) {
        const int64_t d = a.columns(), g = a.groups(), c = a.clusters();
        queries = arena.lend<T>(a.length * d), keys = arena.lend<T>(a.n_keys * a.row()), means = arena.lend<T>(g * d);
        widths = arena.lend<T>(g), query_widths = arena.lend<T>(a.length), metric = arena.lend<T>(d * d);
        centres = arena.lend<T>(c * d), spreads = arena.lend<T>(a.n_keys), log_spreads = arena.lend<T>(a.n_keys);
        mean_spreads = arena.lend<T>(c), images = a.images() ? arena.lend<T>(a.n_keys * d) : nullptr;
    }
    Head(Arena& arena, const SummarisedCall& a, int64_t head) : Head(arena, a) {
        order = a.order + head * a.length, key_order = a.key_order + head * a.n_keys;
        bounds = a.bounds + head * (a.groups() + 1), key_bounds = a.key_bounds + head * (a.clusters() + 1);
    }
};

// Write rows of u that are no padding, times a factor, padded with zeros; name their tokens; return how many they are.
template <class T>
int64_t take(const T* u, const uint8_t* real, int64_t length, int64_t dim, T factor, T* out, int32_t* tokens) {
    int64_t n = 0;
    for (int64_t j = 0; j < length; ++j) {
        if (!real[j]) continue;
        T* row = out + n * padded(dim);
        scaled(u + j * dim, dim, factor, row);
        clear(row + dim, padded(dim) - dim);
        tokens[n++] = int32_t(j);
    }
    return n;
}

// Write the mean of each part of rows, and the difference of each row from it.
template <class T>
void centre(const T* rows, int64_t stride, int64_t dim, const int64_t* bounds, int64_t parts, T* means, T* out) {
    for (int64_t part = 0; part < parts; ++part) {
        T* mean = means + part * dim;
        clear(mean, dim);
        for (int64_t j = bounds[part]; j < bounds[part + 1]; ++j) add_scaled(mean, rows + j * stride, dim, T(1));
        scale(mean, dim, T(1) / std::max<int64_t>(bounds[part + 1] - bounds[part], 1));
        for (int64_t j = bounds[part]; j < bounds[part + 1]; ++j)
            for (int64_t k = 0; k < dim; ++k) out[j * dim + k] = rows[j * stride + k] - mean[k];
    }
}

template <class T>
size_t bytes_to_prepare(const Sizes& a) {
    const int64_t n = std::max(a.length, a.n_keys);
    return 4 * Arena::room<T>(n * a.columns()) + 2 * Arena::room<int32_t>(n) + Arena::room<T>((64 + 1) * a.columns()) +
           TreeScratch<T>::bytes(n, a.columns());
}

// Write the direction in which n rows, whose mean is 0, have the largest variance, as long as their standard deviation.
template <class T>
void longest_direction(const T* rows, int64_t n, int64_t d, T* image, T* out) {
    int64_t farthest = 0;
    for (int64_t j = 1; j < n; ++j)
        if (dot(rows + j * d, rows + j * d, d) > dot(rows + farthest * d, rows + farthest * d, d)) farthest = j;
    n ? copy(rows + farthest * d, d, out) : clear(out, d);
    T variance = 0;
    for (int step = 0; step < 3; ++step) {
        scale(out, d, T(1) / std::sqrt(std::max(dot(out, out, d), TINY<T>)));
        clear(image, d);
        for (int64_t j = 0; j < n; ++j) add_scaled(image, rows + j * d, d, dot(rows + j * d, out, d) / T(n));
        variance = std::sqrt(dot(image, image, d));
        copy(image, d, out);
    }
    scale(out, d, std::sqrt(variance) / std::max(variance, TINY<T>));
}

// Write means and spreads of clusters, from the keys in their order. `spare` and `residuals` have room for n_keys rows.
template <class T>
void describe_clusters(const Sizes& a, T* spare, T* residuals, Head<T>& h) {
    const int64_t d = a.columns(), row = a.row();
    centre(h.keys, row, d, h.key_bounds, a.clusters(), h.centres, residuals);
    T* images = h.images ? h.images : spare;
    product<false>(h.n_keys, d, d, residuals, d, h.metric, d, images, d);
    for (int64_t c = 0; c < a.clusters(); ++c) {
        T sum_of_spreads = 0;
        for (int64_t j = h.key_bounds[c]; j < h.key_bounds[c + 1]; ++j) {
            const T spread = std::max(dot(images + j * d, residuals + j * d, d), T(0));
            h.spreads[j] = T(LOG2E / 2) * spread;
            h.log_spreads[j] = T(0.5) * std::log2(spread);
            sum_of_spreads += spread;
        }
        const int64_t first = h.key_bounds[c], n = h.key_bounds[c + 1] - first;
        h.mean_spreads[c] = sum_of_spreads / std::max<int64_t>(n, 1);
        if (!h.extents) continue;
        T* extent = h.extents + c * d;
        longest_direction(residuals + first * d, n, d, spare, extent);
        product<false>(1, d, d, extent, d, h.metric, d, spare, d);
        h.mean_spreads[c] = std::max(h.mean_spreads[c] - dot(extent, spare, d), T(0));
    }
}

// Put a head's queries into groups and its keys into clusters, with the statistics of both.
//
// `arena` lends buffers. Where `planned`, order and bounds of both sides are given.
template <class T>
void prepare(const SummarisedCall& a, int64_t head, Arena& arena, Head<T>& h, bool planned) {
    const int64_t d = a.columns(), most = std::max(a.length, a.n_keys), row = a.row(), w = row - d;
    T *x = arena.lend<T>(most * d), *y = arena.lend<T>(most * d), *of_keys = h.metric;
    T *spare = arena.lend<T>(most * d), *block = arena.lend<T>((64 + 1) * d), *residuals = arena.lend<T>(most * d);
    int32_t *tokens = arena.lend<int32_t>(most), *key_tokens = arena.lend<int32_t>(most);
    TreeScratch<T> scratch(arena, most, d);
    const T *own_x = static_cast<const T*>(a.x) + head * a.length * a.dim,
            *own_y = static_cast<const T*>(a.y) + head * a.n_keys * a.dim;
    const T* own_v = static_cast<const T*>(a.v) + head * a.n_keys * a.width;
    h.n = take(own_x, a.queries + head * a.length, a.length, a.dim, T(a.root), x, tokens);
    h.n_keys = take(own_y, a.keys + head * a.n_keys, a.n_keys, a.dim, T(a.root), y, key_tokens);

    // Groups, in the metric of the keys' covariance, which stands in h.metric meanwhile.
    covariance(y, h.n_keys, d, block, block + d, of_keys);
    if (!planned) {
        project_on_leading(x, h.n, d, of_keys, scratch);
        balanced(h.n, int(a.levels), scratch, h.order, h.bounds);
        for (int64_t j = 0; j < h.n; ++j)
            copy(x + h.order[j] * d, d, h.queries + j * d), h.order[j] = tokens[h.order[j]];
    } else {
        for (int64_t j = 0; j < h.n; ++j) {
            scaled(own_x + h.order[j] * a.dim, a.dim, T(a.root), h.queries + j * d);
            clear(h.queries + j * d + a.dim, d - a.dim);
        }
    }
    centre(h.queries, d, d, h.bounds, a.groups(), h.means, residuals);
    product<false>(h.n, d, d, residuals, d, of_keys, d, spare, d);
    T total = 0;
    for (int64_t group = 0; group < a.groups(); ++group) {
        T length = 0;
        for (int64_t j = h.bounds[group]; j < h.bounds[group + 1]; ++j)
            length += h.query_widths[j] = dot(spare + j * d, residuals + j * d, d);
        h.widths[group] = length / std::max<int64_t>(h.bounds[group + 1] - h.bounds[group], 1);
        total += length;
    }
    const T factor = T(h.n) / std::max(total, TINY<T>);
    scale(h.widths, a.groups(), factor);
    scale(h.query_widths, h.n, factor);
    product_transposed<false>(d, d, h.n, residuals, d, residuals, d, h.metric, d);
    scale(h.metric, d * d, T(1) / std::max<int64_t>(h.n, 1));

    // Clusters, in the metric Σ_δ.
    if (!planned) {
        project_on_leading(y, h.n_keys, d, h.metric, scratch);
        balanced(h.n_keys, int(a.key_levels), scratch, h.key_order, h.key_bounds);
    }
    for (int64_t j = 0; j < h.n_keys; ++j) {
        T* key = h.keys + j * row;
        if (planned) {
            scaled(own_y + h.key_order[j] * a.dim, a.dim, T(a.root), key);
            clear(key + a.dim, d - a.dim);
        } else {
            copy(y + h.key_order[j] * d, d, key);
            h.key_order[j] = key_tokens[h.key_order[j]];
        }
        copy(own_v + h.key_order[j] * a.width, a.width, key + d);
        clear(key + d + a.width, w - a.width);
    }
    describe_clusters(a, spare, residuals, h);
}

// Buffers of a thread for blocks of groups.
template <class T>
struct BlockScratch {
    T *tile, *tilted, *summaries, *biases, *found, *image;  // (S, GROUPS), …, (GROUPS, C, D + W), (GROUPS, C), …
    T *columns, *widths, *totals;                           // rᵢ log₂ e transposed (D, GROUPS); (GROUPS,) each
    int32_t *lists, *sizes, *firsts;                        // (GROUPS, S), (GROUPS,), (GROUPS, C + 1)
    T *x, *weights, *sums, *masses, *read, *tops, *raised, *least;  // of the queries of one group
    T* pairs;                                                       // weights of the keys of one cluster
    T *log_masses, *offsets;  // log₂ Σ W̃ and (μ − ȳ)ᵀ Σ_δ (μ − ȳ), (C, GROUPS) each
    T* spans;                 // δᵀ extent, (C, queries)
    T* tested;                // outputs of the members that test their cells, (GROUPS, D + W)
    int32_t* hits;            // cluster and query of each opening

    static constexpr int N = 20;
    static void sizes_of(const Sizes& a, int64_t (&floats)[N], int64_t (&integers)[4]) {
        const int64_t c = a.clusters(), d = a.columns(), q = a.largest_group();
        const int64_t f[N] = {a.n_keys * GROUPS,
                              a.largest_cluster() * GROUPS,
                              GROUPS * c * a.row(),
                              GROUPS * c,
                              GROUPS * a.row(),
                              GROUPS * d,
                              d * GROUPS,
                              GROUPS,
                              GROUPS,
                              d * q,
                              std::max(SOME_KEYS, c) * q,
                              q * (a.row() - d),
                              2 * q,
                              2 * q,
                              2 * q,
                              padded(a.largest_cluster()),
                              c * GROUPS,
                              c * GROUPS,
                              GROUPS * a.row(),
                              c * q};
        const int64_t i[4] = {GROUPS * a.n_keys, GROUPS, GROUPS * (c + 1), 2 * c * q};
        std::copy(f, f + N, floats), std::copy(i, i + 4, integers);
    }
    static size_t bytes(const Sizes& a) {
        int64_t floats[N], integers[4];
        sizes_of(a, floats, integers);
        size_t total = 0;
        for (const int64_t n : floats) total += Arena::room<T>(n);
        for (const int64_t n : integers) total += Arena::room<int32_t>(n);
        return total;
    }
    BlockScratch(Arena& arena, const Sizes& a) {
        int64_t floats[N], integers[4];
        sizes_of(a, floats, integers);
        T** places[N] = {&tile,   &tilted, &summaries,  &biases,  &found,  &image,  &columns,
                         &widths, &totals, &x,          &weights, &sums,   &masses, &tops,
                         &least,  &pairs,  &log_masses, &offsets, &tested, &spans};
        int32_t** others[4] = {&lists, &sizes, &firsts, &hits};
        for (int i = 0; i < N; ++i) *places[i] = arena.lend<T>(floats[i]);
        for (int i = 0; i < 4; ++i) *others[i] = arena.lend<int32_t>(integers[i]);
        const int64_t q = a.largest_group();
        read = masses + q, raised = tops + q;
    }
};

// Raise `top`, one number per column, to the largest in some rows of a tile.
template <class T>
void maxima(const T* tile, int64_t n, int64_t columns, T* top) {
    for (int64_t i = 0; i < columns; i += lanes<T>) {
        vec<T> largest = load(top + i);
        for (int64_t j = 0; j < n; ++j) largest = larger(load(tile + j * columns + i), largest);
        store(top + i, largest);
    }
}

// Turn t into 2^(t − top) in some rows of a tile, and add them up per column. LOWEST becomes 0 if it is `Masked`.
template <bool Masked, class T>
void exponentials(T* tile, int64_t n, int64_t columns, const T* top, T* sums) {
    for (int64_t i = 0; i < columns; i += lanes<T>) {
        const vec<T> own = load(top + i);
        vec<T> total = load(sums + i);
        for (int64_t j = 0; j < n; ++j) {
            const vec<T> t = load(tile + j * columns + i);
            vec<T> weight = exp2<T>(t - own);
            if constexpr (Masked) weight = t > T(0.1) * LOWEST<T> ? weight : vec<T>{};
            store(tile + j * columns + i, weight);
            total += weight;
        }
        store(sums + i, total);
    }
}

// Write the scores s of all keys for the means of a block of groups, and Z = log₂ Σ 2^s.
template <class T>
void score(const Sizes& a, const Head<T>& h, int64_t first_group, BlockScratch<T>& s) {
    constexpr int N = lanes<T>, V = GROUPS / N;
    const int64_t d = a.columns(), some_groups = std::min(GROUPS, a.groups() - first_group);
    for (int64_t i = 0; i < GROUPS; ++i) {
        const int64_t group = first_group + std::min(i, some_groups - 1);
        s.widths[i] = h.widths[group];
        for (int64_t k = 0; k < d; ++k) s.columns[k * GROUPS + i] = h.means[group * d + k] * T(LOG2E);
    }
    vec<T> top[V], sums[V];
    for (int c = 0; c < V; ++c) top[c] = splat<T>(LOWEST<T>), sums[c] = vec<T>{};
    for (int64_t first = 0; first < h.n_keys; first += SOME_KEYS) {
        const int64_t n = std::min(SOME_KEYS, h.n_keys - first);
        T* tile = s.tile + first * GROUPS;
        product<false>(n, GROUPS, d, h.keys + first * a.row(), a.row(), s.columns, GROUPS, tile, GROUPS);
        for (int c = 0; c < V; ++c) {
            vec<T> largest = top[c];
            for (int64_t j = 0; j < n; ++j) largest = larger(load(tile + j * GROUPS + c * N), largest);
            vec<T> total = sums[c] * exp2<T>(top[c] - largest);
            for (int64_t j = 0; j < n; ++j) total += exp2<T>(load(tile + j * GROUPS + c * N) - largest);
            top[c] = largest, sums[c] = total;
        }
    }
    for (int c = 0; c < V; ++c) store(s.totals + c * N, top[c] + log2<T>(larger(sums[c], splat<T>(TINY<T>))));
}

// Write log₂ W̃ = s + e of a key for all groups of a block, e = γd² log₂ e / 2, at most LARGEST_TILT; LOWEST and a place in
// the list of the group where the key is exact.
//
// That is where s + log₂ √expm1(γd²) is over a limit; the root's logarithm is the lesser of log₂ √(γd²) + e/2 + e² log 2/12,
// its series, and e: right to 0.05.
template <class T>
void tilt(const T* scores, T spread, T log_spread, const T* log_widths, int32_t row, int64_t n_keys, BlockScratch<T>& s,
          T* out, T* tops) {
    constexpr int N = lanes<T>;
    for (int c = 0; c < GROUPS; c += N) {
        const vec<T> score = load(scores + c), e = spread * load(s.widths + c);
        const vec<T> series = (e * T(0.057762265046662105) + T(0.5)) * e + (log_spread + load(log_widths + c));
        const mask<T> over = score + lesser(series, e) > load(s.totals + c);
        vec<T> tilted = score + lesser(e, splat<T>(T(LARGEST_TILT)));
        tilted = over ? splat<T>(LOWEST<T>) : tilted;
        store(out + c, tilted);
        store(tops + c, larger(tilted, load(tops + c)));
        for (unsigned bits = bits_of(over); bits; bits &= bits - 1) {
            const int64_t i = c + __builtin_ctz(bits);
            s.lists[i * n_keys + s.sizes[i]++] = row;
        }
    }
}

// Choose the keys that each group computes exactly, and sum up the others by cluster.
//
// s.totals holds the largest mass times relative error that a summary may have per key. Writes μ and V to s.summaries,
// log₂ A − rᵀμ log₂ e to s.biases (about LOWEST where all keys are exact), lists, their sizes and where clusters begin.
template <class T>
void summarise(const Sizes& a, const Head<T>& h, BlockScratch<T>& s) {
    constexpr int N = lanes<T>;
    constexpr T NONE = T(0.1) * LOWEST<T>;  // largest of no keys
    const int64_t d = a.columns(), row = a.row(), n_clusters = a.clusters();
    alignas(64) T log_widths[GROUPS], tops[GROUPS], masses[GROUPS], moments[GROUPS];
    for (int64_t i = 0; i < GROUPS; ++i) log_widths[i] = T(0.5) * std::log2(s.widths[i]), s.sizes[i] = 0;
    for (int64_t c = 0; c < n_clusters; ++c) {
        const int64_t first = h.key_bounds[c], n = h.key_bounds[c + 1] - first;
        for (int64_t i = 0; i < GROUPS; ++i) s.firsts[i * (n_clusters + 1) + c] = s.sizes[i];
        T *log_masses = s.log_masses + c * GROUPS, *offsets = s.offsets + c * GROUPS;
        fill(tops, GROUPS, NONE);
        for (int64_t j = 0; j < n; ++j)
            tilt(s.tile + (first + j) * GROUPS, h.spreads[first + j], h.log_spreads[first + j], log_widths,
                 int32_t(first + j), a.n_keys, s, s.tilted + j * GROUPS, tops);
        for (int64_t i = 0; i < GROUPS; i += N) {
            const vec<T> top = load(tops + i);
            vec<T> mass{}, moment{};
            for (int64_t j = 0; j < n; ++j) {
                const vec<T> weight = exp2<T>(load(s.tilted + j * GROUPS + i) - top);
                store(s.tilted + j * GROUPS + i, weight);
                mass += weight;
                moment += weight * load(s.tile + (first + j) * GROUPS + i);
            }
            mass = larger(mass, splat<T>(TINY<T>));
            store(masses + i, mass);
            store(moments + i, moment / mass);  // rᵀμ log₂ e
            store(log_masses + i, log2<T>(mass) + top);
        }
        product_transposed<false>(GROUPS, row, n, s.tilted, GROUPS, h.keys + first * row, row, s.found, row);
        for (int64_t i = 0; i < GROUPS; ++i)
            scaled(s.found + i * row, row, T(1) / masses[i], s.summaries + (i * n_clusters + c) * row);
        if (h.images) {
            product_transposed<false>(GROUPS, d, n, s.tilted, GROUPS, h.images + first * d, d, s.image, d);
        } else {
            for (int64_t i = 0; i < GROUPS; ++i) add_scaled(s.found + i * row, h.centres + c * d, d, -masses[i]);
            product<false>(GROUPS, d, d, s.found, row, h.metric, d, s.image, d);
        }
        for (int64_t i = 0; i < GROUPS; ++i) {
            const T *own = s.summaries + (i * n_clusters + c) * row, *mean = h.centres + c * d;
            vec<T> spread{};  // (μ − ȳ)ᵀ Σ_δ (μ − ȳ) times the mass
            for (int64_t k = 0; k < d; k += N) spread += load(s.image + i * d + k) * (load(own + k) - load(mean + k));
            offsets[i] = sum<T>(spread) / masses[i];
            const T shift = std::min(T(LOG2E / 2) * s.widths[i] * offsets[i], T(LARGEST_TILT));
            s.biases[i * n_clusters + c] = tops[i] > NONE ? log_masses[i] - shift - moments[i] : LOWEST<T>;
        }
    }
    for (int64_t i = 0; i < GROUPS; ++i) s.firsts[i * (n_clusters + 1) + n_clusters] = s.sizes[i];
}

}  // namespace hrf
