// Gradients of summarised attention, for the plan of the forward pass held fixed.
//
// With p the weights of a query, D = ⟨∂out, out⟩ and dt = p (⟨∂out, v⟩ − D) for each exact key (v its value) and each
// summary (v is V), logits being xᵀy and δᵀμ + log A,
//
//     ∂V = Σ p ∂out,  ∂μ = Σ dt δ,  ∂log A = Σ dt     over the queries of the group;        ∂δ = Σ dt μ over clusters
//     log A = log M − g,  g = γ oᵀΣ_δo/2,  o = μ − ȳ:     ∂γ, ∂Σ_δ, ∂μ and ∂ȳ by −∂log A, unless g is at its limit
//     w = W̃/M:  da = w (∂log A + ⟨∂μ, y − μ⟩ + ⟨∂V, v − V⟩),  a = rᵀy + γd²/2
//
// and from a and the sums over w come ∂y, ∂v, ∂r, ∂γ and ∂d². The statistics follow at the end, head by head.
#pragma once

#include "summarised.h"

namespace hrf {

struct SummarisedGradient {
    SummarisedCall call;                          // as in the forward pass, with the plan and the outputs it wrote
    const int32_t *exact, *opened;                // of `Found`
    const int64_t *exact_starts, *opened_starts;  // where those of each group begin, (N·G + 1,)
    const void* gradient;                         // ∂out, (N, L, d_v)
    void *x, *y, *v;                              // receive ∂x, ∂y and ∂v
};

// Sums over all groups of a head, and buffers for one block or group.
template <class T>
struct GradientScratch {
    T *queries, *keys, *means, *widths, *spreads, *metric,
        *centres;  // ∂x by row, ∂(y, v) by row, ∂r, ∂γ, ∂d², ∂Σ_δ, ∂ȳ
    T *residuals, *summaries, *log_masses, *columns, *block_means, *points, *changes, *metric_of_keys, *images, *square;
    T *centred, *weighted, *block;                    // for the statistics
    T *out, *transposed, *weights, *products, *rows;  // of one group: ∂out, its transpose, p, dt, …
    T *norms, *top;

    static constexpr int N = 27;
    static void sizes_of(const Sizes& a, int64_t (&floats)[N]) {
        const int64_t d = a.columns(), row = a.row(), w = row - d, g = a.groups(), c = a.clusters(),
                      q = a.largest_group();
        const int64_t tile = std::max({SOME_KEYS, c, a.largest_cluster()}) * std::max(q, GROUPS);
        const int64_t f[N] = {a.length * d,
                              a.n_keys * row,
                              g * d,
                              g,
                              a.n_keys,
                              d * d,
                              c * d,
                              std::max(a.length, a.n_keys) * d,
                              GROUPS * c * row,
                              GROUPS * c,
                              row * GROUPS,
                              GROUPS * d,
                              GROUPS * row,
                              GROUPS * d,
                              d * d,
                              std::max(a.length, a.n_keys) * d,
                              d * d,
                              q * w,
                              w * q,
                              tile,
                              tile,
                              SOME_KEYS * row,
                              q,
                              q,
                              a.n_keys * d,
                              a.length * d,
                              (64 + 1) * d};
        std::copy(f, f + N, floats);
    }
    static size_t bytes(const Sizes& a) {
        int64_t floats[N];
        sizes_of(a, floats);
        size_t total = 0;
        for (const int64_t n : floats) total += Arena::room<T>(n);
        return total;
    }
    GradientScratch(Arena& arena, const Sizes& a) {
        int64_t floats[N];
        sizes_of(a, floats);
        T** places[N] = {&queries,        &keys,      &means,      &widths,  &spreads,     &metric,  &centres,
                         &residuals,      &summaries, &log_masses, &columns, &block_means, &points,  &changes,
                         &metric_of_keys, &images,    &square,     &out,     &transposed,  &weights, &products,
                         &rows,           &norms,     &top,        &centred, &weighted,    &block};
        for (int i = 0; i < N; ++i) *places[i] = arena.lend<T>(floats[i]);
        for (int i = 0; i < 7; ++i) clear(*places[i], floats[i]);
    }
};

// Turn logarithms of weights into p, and products ⟨∂out, v⟩ into dt.
template <class T>
void weigh_back(T* weights, T* products, int64_t rows, int64_t columns, const T* tops, const T* norms) {
    constexpr int N = lanes<T>;
    for (int64_t i = 0; i < columns; i += N) {
        const vec<T> top = load(tops + i), norm = load(norms + i);
        for (int64_t j = 0; j < rows; ++j) {
            const vec<T> t = load(weights + j * columns + i), p = t > T(0.1) * LOWEST<T> ? exp2<T>(t - top) : vec<T>{};
            store(weights + j * columns + i, p);
            store(products + j * columns + i, p * (load(products + j * columns + i) - norm));
        }
    }
}

// Gradients of the queries of one group, the i-th of its block, and of what they read.
template <class T>
void read_back(const SummarisedGradient& b, const Head<T>& h, int64_t head, int64_t group, int64_t i,
               BlockScratch<T>& s, GradientScratch<T>& g) {
    const SummarisedCall& a = b.call;
    const int64_t d = a.columns(), row = a.row(), w = row - d, n_clusters = a.clusters(), begin = h.bounds[group];
    const int64_t n = h.bounds[group + 1] - begin, columns = padded(n), place = head * a.groups() + group;
    const T *x = h.queries + begin * d, *residuals = g.residuals + begin * d;
    T* dx = g.queries + begin * d;
    clear(g.out, columns * w), clear(g.transposed, w * columns), clear(s.x, d * columns);
    fill(g.top, columns, T(0)), fill(g.norms, columns, T(0));
    for (int64_t q = 0; q < n; ++q) {
        const int64_t token = head * a.length + h.order[begin + q];
        const T *out = static_cast<const T*>(a.out) + token * a.width,
                *gradient = static_cast<const T*>(b.gradient) + token * a.width;
        copy(gradient, a.width, g.out + q * w);
        for (int64_t k = 0; k < a.width; ++k) g.transposed[k * columns + q] = gradient[k];
        for (int64_t k = 0; k < d; ++k) s.x[k * columns + q] = x[q * d + k] * T(LOG2E);
        g.norms[q] = dot(gradient, out, a.width);
        g.top[q] = static_cast<const T*>(a.log_masses)[token];
    }
    // Summaries; those that a query opens have no weight.
    const T *summaries = s.summaries + i * n_clusters * row, *biases = s.biases + i * n_clusters;
    for (int64_t c = 0; c < n_clusters; ++c) fill(g.weights + c * columns, columns, biases[c]);
    product<true>(n_clusters, columns, d, summaries, row, s.x, columns, g.weights, columns);
    const int32_t* opened = b.opened + 2 * b.opened_starts[place];
    const int64_t n_opened = b.opened_starts[place + 1] - b.opened_starts[place];
    for (int64_t hit = 0; hit < n_opened; ++hit)
        g.weights[opened[2 * hit + 1] * columns + opened[2 * hit] - begin] = LOWEST<T>;
    product<false>(n_clusters, columns, w, summaries + d, row, g.transposed, columns, g.products, columns);
    weigh_back(g.weights, g.products, n_clusters, columns, g.top, g.norms);
    T* changes = g.summaries + i * n_clusters * row;
    product<false>(n_clusters, d, n, g.products, columns, residuals, d, changes, row);
    product<false>(n_clusters, w, n, g.weights, columns, g.out, w, changes + d, row);
    for (int64_t c = 0; c < n_clusters; ++c) {
        T total = 0;
        for (int64_t q = 0; q < n; ++q) total += g.products[c * columns + q];
        g.log_masses[i * n_clusters + c] = total;
    }
    product_transposed<true>(n, d, n_clusters, g.products, columns, summaries, row, dx, d);
    for (int64_t q = 0; q < n; ++q) add_scaled(g.means + group * d, dx + q * d, d, T(-1));
    // Exact keys of the group.
    const int32_t* exact = b.exact + b.exact_starts[place];
    const int64_t n_exact = b.exact_starts[place + 1] - b.exact_starts[place];
    for (int64_t start = 0; start < n_exact; start += SOME_KEYS) {
        const int64_t some = std::min(SOME_KEYS, n_exact - start);
        const int32_t* index = exact + start;
        product<false>(some, columns, d, h.keys, row, s.x, columns, g.weights, columns, index);
        product<false>(some, columns, w, h.keys + d, row, g.transposed, columns, g.products, columns, index);
        weigh_back(g.weights, g.products, some, columns, g.top, g.norms);
        product_transposed<true>(n, d, some, g.products, columns, h.keys, row, dx, d, index);
        product<false>(some, d, n, g.products, columns, x, d, g.rows, row);
        product<false>(some, w, n, g.weights, columns, g.out, w, g.rows + d, row);
        for (int64_t j = 0; j < some; ++j) add_scaled(g.keys + index[j] * row, g.rows + j * row, row, T(1));
    }
    // Keys of opened clusters.
    for (int64_t hit = 0; hit < n_opened; ++hit) {
        const int64_t q = opened[2 * hit] - begin, c = opened[2 * hit + 1];
        const int32_t *next = std::lower_bound(exact, exact + n_exact, int32_t(h.key_bounds[c])),
                      *end = exact + n_exact;
        for (int64_t j = h.key_bounds[c]; j < h.key_bounds[c + 1]; ++j) {
            if (next != end && *next == j) {
                ++next;
                continue;
            }
            const T *key = h.keys + j * row, t = T(LOG2E) * dot(x + q * d, key, d) - g.top[q], p = exp2_one<T>(t);
            const T dt = p * (dot(key + d, g.out + q * w, w) - g.norms[q]);
            add_scaled(dx + q * d, key, d, dt);
            add_scaled(g.keys + j * row, x + q * d, d, dt);
            add_scaled(g.keys + j * row + d, g.out + q * w, w, p);
        }
    }
}

// Gradients of the keys of one cluster, from the summaries of a block of groups.
template <class T>
void summarise_back(const Sizes& a, const Head<T>& h, int64_t first_group, int64_t c, BlockScratch<T>& s,
                    GradientScratch<T>& g) {
    constexpr int N = lanes<T>;
    const int64_t d = a.columns(), row = a.row(), n_clusters = a.clusters(), first = h.key_bounds[c];
    const int64_t n = h.key_bounds[c + 1] - first, some_groups = std::min(GROUPS, a.groups() - first_group);
    alignas(64) T constants[GROUPS] = {}, of_widths[GROUPS] = {}, log_masses[GROUPS];
    // w, from the scores once more.
    const T* tile = s.tile + first * GROUPS;
    for (int64_t i = 0; i < GROUPS; ++i) log_masses[i] = i < some_groups ? s.log_masses[c * GROUPS + i] : -LOWEST<T>;
    for (int64_t j = 0; j < n; ++j)
        for (int64_t i = 0; i < GROUPS; i += N) {
            const vec<T> e = lesser(h.spreads[first + j] * load(s.widths + i), splat<T>(T(LARGEST_TILT)));
            const vec<T> score = load(tile + j * GROUPS + i), weight = exp2<T>(score + e - load(log_masses + i));
            store(s.tilted + j * GROUPS + i, score > T(0.1) * LOWEST<T> ? weight : vec<T>{});
        }
    // The limit of g, and o = μ − ȳ with its image Σ_δ o.
    if (h.images) product_transposed<false>(GROUPS, d, n, s.tilted, GROUPS, h.images + first * d, d, s.image, d);
    const T* centre = h.centres + c * d;
    for (int64_t i = 0; i < GROUPS; ++i) {
        const T* own = s.summaries + (i * n_clusters + c) * row;
        for (int64_t k = 0; k < d; ++k) g.points[i * d + k] = own[k] - centre[k];
    }
    if (!h.images) product<false>(GROUPS, d, d, g.points, d, h.metric, d, s.image, d);
    clear(g.changes, GROUPS * d);
    for (int64_t i = 0; i < some_groups; ++i) {
        T* change = g.summaries + (i * n_clusters + c) * row;
        const T of_mass = g.log_masses[i * n_clusters + c], offset = s.offsets[c * GROUPS + i], width = s.widths[i];
        if (s.biases[i * n_clusters + c] > T(0.1) * LOWEST<T> && T(LOG2E / 2) * width * offset < T(LARGEST_TILT)) {
            of_widths[i] -= of_mass * offset / 2;
            add_scaled(change, s.image + i * d, d, -of_mass * width);
            add_scaled(g.centres + c * d, s.image + i * d, d, of_mass * width);
            scaled(g.points + i * d, d, -of_mass * width / 2, g.changes + i * d);
        }
        const T* own = s.summaries + (i * n_clusters + c) * row;
        constants[i] = of_mass - dot(change, own, row);
        for (int64_t k = 0; k < row; ++k) g.columns[k * GROUPS + i] = change[k];
    }
    for (int64_t i = some_groups; i < GROUPS; ++i)
        for (int64_t k = 0; k < row; ++k) g.columns[k * GROUPS + i] = 0;
    product_transposed<true>(d, d, GROUPS, g.changes, d, g.points, d, g.metric, d);
    // da, and what follows from it.
    T* da = g.weights;
    product<false>(n, GROUPS, row, h.keys + first * row, row, g.columns, GROUPS, da, GROUPS);
    for (int64_t i = 0; i < GROUPS; i += N) {
        const vec<T> width = load(s.widths + i), constant = load(constants + i);
        vec<T> total = load(of_widths + i);
        for (int64_t j = 0; j < n; ++j) {
            const vec<T> change = load(s.tilted + j * GROUPS + i) * (load(da + j * GROUPS + i) + constant);
            const T spread = h.spreads[first + j];
            const vec<T> inside = spread * width < T(LARGEST_TILT) ? change : vec<T>{};
            store(da + j * GROUPS + i, change);
            total += inside * (spread / T(LOG2E));  // d²/2
            g.spreads[first + j] += sum<T>(inside * width) / 2;
        }
        store(of_widths + i, total);
    }
    for (int64_t i = 0; i < some_groups; ++i) g.widths[first_group + i] += of_widths[i];
    product<true>(n, d, GROUPS, da, GROUPS, g.block_means, d, g.keys + first * row, row);
    for (int64_t i = 0; i < some_groups; ++i)  // the changes of this cluster side by side
        copy(g.summaries + (i * n_clusters + c) * row, row, s.found + i * row);
    product<true>(n, row, some_groups, s.tilted, GROUPS, s.found, row, g.keys + first * row, row);
    product_transposed<true>(some_groups, d, n, da, GROUPS, h.keys + first * row, row, g.means + first_group * d, d);
}

// Gradients of what the statistics depend on: means, residuals, covariances, widths and spreads.
template <class T>
void statistics_back(const Sizes& a, const Head<T>& h, GradientScratch<T>& g) {
    const int64_t d = a.columns(), row = a.row(), n_clusters = a.clusters(), n_groups = a.groups();
    const T inverse = T(1) / std::max<int64_t>(h.n, 1), key_inverse = T(1) / std::max<int64_t>(h.n_keys, 1);
    const auto symmetric = [&](const T* matrix, T factor) {
        for (int64_t i = 0; i < d; ++i)
            for (int64_t j = 0; j < d; ++j) g.square[i * d + j] = factor * (matrix[i * d + j] + matrix[j * d + i]);
        return g.square;
    };
    // d² = eᵀ Σ_δ e with e = y − ȳ: ∂e = 2 ∂d² Σ_δ e, ∂Σ_δ = Σ ∂d² e eᵀ.
    T *e = g.images, *line = g.points;
    for (int64_t c = 0; c < n_clusters; ++c) {
        const int64_t first = h.key_bounds[c], n = h.key_bounds[c + 1] - first;
        const T share = T(1) / std::max<int64_t>(n, 1);
        for (int64_t start = first; start < first + n; start += GROUPS) {
            const int64_t some = std::min(GROUPS, first + n - start);
            for (int64_t j = 0; j < some; ++j)
                for (int64_t k = 0; k < d; ++k) {
                    e[j * d + k] = h.keys[(start + j) * row + k] - h.centres[c * d + k];
                    line[j * d + k] = e[j * d + k] * g.spreads[start + j];
                }
            product_transposed<true>(d, d, some, line, d, e, d, g.metric, d);
            product<false>(some, d, d, line, d, h.metric, d, g.changes, d);
            for (int64_t j = 0; j < some; ++j) {
                add_scaled(g.keys + (start + j) * row, g.changes + j * d, d, T(2));
                add_scaled(g.centres + c * d, g.changes + j * d, d, T(-2));
            }
        }
        for (int64_t j = 0; j < n; ++j) add_scaled(g.keys + (first + j) * row, g.centres + c * d, d, share);
    }
    // γ = mean of ℓ over the group / P, ℓ = δᵀ Σ_y δ, P its mean over all queries.
    T *mean = g.block, *of_keys = g.metric_of_keys, *images = g.images;
    for (int64_t j = 0; j < h.n_keys; ++j) copy(h.keys + j * row, d, g.centred + j * d);
    covariance(g.centred, h.n_keys, d, mean, g.block + d, of_keys);
    for (int64_t j = 0; j < h.n_keys; ++j) add_scaled(g.centred + j * d, mean, d, T(-1));
    product<false>(h.n, d, d, g.residuals, d, of_keys, d, images, d);
    T total = 0, mixed = 0;
    for (int64_t q = 0; q < h.n; ++q) total += dot(images + q * d, g.residuals + q * d, d);
    const T pooled = total * inverse;
    for (int64_t group = 0; group < n_groups; ++group) mixed += g.widths[group] * h.widths[group];
    if (pooled > TINY<T>) {
        for (int64_t group = 0; group < n_groups; ++group) {
            const int64_t begin = h.bounds[group], n = h.bounds[group + 1] - begin;
            const T of_length = g.widths[group] / (std::max<int64_t>(n, 1) * pooled) - mixed * inverse / pooled;
            for (int64_t q = begin; q < begin + n; ++q) {
                scaled(g.residuals + q * d, d, of_length, g.weighted + q * d);
                add_scaled(g.queries + q * d, images + q * d, d, 2 * of_length);
                add_scaled(g.means + group * d, images + q * d, d, -2 * of_length);
            }
        }
        product_transposed<false>(d, d, h.n, g.weighted, d, g.residuals, d, of_keys, d);
        product<true>(h.n_keys, d, d, g.centred, d, symmetric(of_keys, key_inverse), d, g.keys, row);
    }
    // Σ_δ = mean of δ δᵀ, δ = x − r, and r is the mean of its group.
    product<false>(h.n, d, d, g.residuals, d, symmetric(g.metric, inverse), d, images, d);
    for (int64_t group = 0; group < n_groups; ++group) {
        const int64_t begin = h.bounds[group], n = h.bounds[group + 1] - begin;
        for (int64_t q = begin; q < begin + n; ++q) {
            add_scaled(g.queries + q * d, images + q * d, d, T(1));
            add_scaled(g.means + group * d, images + q * d, d, T(-1));
        }
        for (int64_t q = begin; q < begin + n; ++q)
            add_scaled(g.queries + q * d, g.means + group * d, d, T(1) / std::max<int64_t>(n, 1));
    }
}

template <class T>
void summarised_backward(const SummarisedGradient& b) {
    const SummarisedCall& a = b.call;
    const int64_t d = a.columns(), row = a.row(), n_clusters = a.clusters();
    parallel(a.n, int(a.threads), [&](int64_t head, int) {
        static thread_local Arena arena;
        const size_t scratch = BlockScratch<T>::bytes(a) + GradientScratch<T>::bytes(a);
        arena.reset(Head<T>::bytes(a) + std::max(bytes_to_prepare<T>(a), scratch));
        Head<T> h(arena, a, head);
        const auto mark = arena.mark();
        prepare(a, head, arena, h, true);
        arena.back_to(mark);
        BlockScratch<T> s(arena, a);
        GradientScratch<T> g(arena, a);
        for (int64_t group = 0; group < a.groups(); ++group)
            for (int64_t q = h.bounds[group]; q < h.bounds[group + 1]; ++q)
                for (int64_t k = 0; k < d; ++k) g.residuals[q * d + k] = h.queries[q * d + k] - h.means[group * d + k];
        for (int64_t start = 0; start < a.groups(); start += GROUPS) {
            const int64_t some = std::min(GROUPS, a.groups() - start);
            score(a, h, start, s);
            fill(s.totals, GROUPS, std::numeric_limits<T>::infinity());  // exact keys are given: they get no score
            clear(g.block_means, GROUPS * d);
            for (int64_t i = 0; i < some; ++i) {
                const int64_t place = head * a.groups() + start + i;
                for (int64_t k = b.exact_starts[place]; k < b.exact_starts[place + 1]; ++k)
                    s.tile[b.exact[k] * GROUPS + i] = LOWEST<T>;
                copy(h.means + (start + i) * d, d, g.block_means + i * d);
            }
            summarise(a, h, s);
            for (int64_t i = 0; i < some; ++i) read_back(b, h, head, start + i, i, s, g);
            for (int64_t c = 0; c < n_clusters; ++c) summarise_back(a, h, start, c, s, g);
        }
        statistics_back(a, h, g);
        T *x = static_cast<T*>(b.x) + head * a.length * a.dim, *y = static_cast<T*>(b.y) + head * a.n_keys * a.dim;
        T* v = static_cast<T*>(b.v) + head * a.n_keys * a.width;
        for (int64_t j = 0; j < h.n; ++j) scaled(g.queries + j * d, a.dim, T(a.root), x + h.order[j] * a.dim);
        for (int64_t j = 0; j < h.n_keys; ++j) {
            scaled(g.keys + j * row, a.dim, T(a.root), y + h.key_order[j] * a.dim);
            copy(g.keys + j * row + d, a.width, v + h.key_order[j] * a.width);
        }
    });
}

}  // namespace hrf
