// Outputs of summarised attention: each group reads its exact keys and the summaries of all clusters.
//
// Both are rows of one softmax, whose weights are 2^(bias + xᵀk): an exact key has the bias 0, a summary log₂ A − rᵀμ.
// Then single queries open the clusters whose summaries would be too wrong for them, and compute their keys one by one.
#pragma once

#include "summarised.h"

namespace hrf {

// What a plan holds beside its trees; `take_found` hands it to Python.
struct Found {
    std::vector<int32_t> exact;   // rows of the exact keys of all groups, one group after the other
    std::vector<int32_t> opened;  // row of the query and cluster of everything that is opened
};

// Turn logarithms of weights into weights at the scale of the sums, which is raised where needed; add them up.
//
// Each query has a scale of its own, so that its output does not depend on its neighbours, not even by rounding.
template <bool Masked = false, class T>
void weigh(T* weights, int64_t rows, int64_t columns, int64_t width, BlockScratch<T>& s, T* masses) {
    constexpr int N = lanes<T>;
    copy(s.tops, columns, s.raised);
    maxima(weights, rows, columns, s.raised);
    for (int64_t first = 0; first < columns; first += N) {
        unsigned high = bits_of(load(s.raised + first) > load(s.tops + first) + T(ROOM));
        for (; high; high &= high - 1) {
            const int64_t i = first + __builtin_ctz(high);
            const T step = exp2_one<T>(s.tops[i] - s.raised[i]);
            s.tops[i] = s.raised[i];
            s.masses[i] *= step;
            scale(s.sums + i * width, width, step);
        }
    }
    exponentials<Masked>(weights, rows, columns, s.tops, masses);
}

// √expm1(t), the relative standard deviation of a log-normal weight, as e^(t/2) √(1 − e^−t) or by its series.
template <class T>
vec<T> deviation(vec<T> variance) {
    const vec<T> t = lesser(variance, splat<T>(T(LARGEST_VARIANCE))), root = exp<T>(t * T(0.5));
    vec<T> square = t < T(0.01) ? t * (1 + t * T(0.5) * (1 + t * T(1.0 / 3))) : 1 - 1 / root / root;
    for (int i = 0; i < lanes<T>; ++i) square[i] = std::sqrt(square[i]);
    return t < T(0.01) ? square : root * square;
}

// Variance of the logits of a cluster's keys for some queries: γ(x)d², plus (δᵀ extent)² where clusters have extents.
template <class T>
vec<T> variance_of(const Head<T>& h, int64_t c, vec<T> width, const T* spans) {
    vec<T> variance = width * h.mean_spreads[c];
    if (h.extents) variance += load(spans) * load(spans);
    return variance;
}

// List the clusters that queries open, where weight · √expm1(variance) is `limit` times the query's mass or more.
//
// `before` is log₂ of the mass that the queries have found elsewhere, or null.
template <class T>
int64_t find_opened(const Sizes& a, const Head<T>& h, const T* widths, int64_t n, int64_t columns, const T* before,
                    T limit, BlockScratch<T>& s) {
    constexpr int N = lanes<T>;
    const int64_t n_clusters = a.clusters();
    const T widest = h.extents ? T(LARGEST_VARIANCE) : *std::max_element(h.mean_spreads, h.mean_spreads + n_clusters);
    T *own_widths = s.raised, *least = s.least, *allowed = s.least + columns;
    copy(widths, n, own_widths);
    fill(own_widths + n, columns - n, T(0));
    for (int64_t i = 0; i < columns; i += N) {
        vec<T> mass = load(s.masses + i) + load(s.read + i);
        if (before) mass += exp2<T>(lesser(load(before + i) - load(s.tops + i), splat<T>(T(FAR))));
        store(allowed + i, limit * mass);
        const vec<T> widest_here = h.extents ? splat<T>(widest) : load(own_widths + i) * widest;
        store(least + i, larger(limit * mass / deviation<T>(widest_here), splat<T>(TINY<T>)));
    }
    fill(least + n, columns - n, std::numeric_limits<T>::infinity());
    int64_t count = 0;
    for (int64_t c = 0; c < n_clusters; ++c) {
        const T* weights = s.weights + c * columns;
        for (int64_t i = 0; i < columns; i += N) {
            if (!bits_of(load(weights + i) >= load(least + i))) continue;
            const vec<T> variance = variance_of(h, c, load(own_widths + i), s.spans + c * columns + i);
            const vec<T> error = load(weights + i) * deviation<T>(variance);
            const mask<T> opens = (error >= load(allowed + i)) & (load(weights + i) >= load(least + i));
            for (unsigned bits = bits_of(opens); bits; bits &= bits - 1) {
                s.hits[2 * count] = int32_t(c);
                s.hits[2 * count++ + 1] = int32_t(i + __builtin_ctz(bits));
            }
        }
    }
    return count;
}

// Replace summaries by their keys, for all hits; return how many keys the queries meet.
template <class T>
int64_t open_clusters(const Sizes& a, const Head<T>& h, const T* x, int64_t columns, const int32_t* exact,
                      const int32_t* firsts, int64_t n_hits, BlockScratch<T>& s) {
    if (!n_hits) return 0;
    constexpr int N = lanes<T>;
    const int64_t d = a.columns(), row = a.row(), w = row - d, n_clusters = a.clusters();
    for (int64_t hit = 0; hit < n_hits; ++hit) s.weights[s.hits[2 * hit] * columns + s.hits[2 * hit + 1]] = 0;
    // Summed anew: a difference could lose all digits.
    clear(s.read, columns);
    for (int64_t c = 0; c < n_clusters; ++c) add_scaled(s.read, s.weights + c * columns, columns, T(1));
    int64_t met = 0;
    for (int64_t hit = 0; hit < n_hits; ++hit) {
        const int64_t c = s.hits[2 * hit], i = s.hits[2 * hit + 1], first = h.key_bounds[c];
        const int64_t n = h.key_bounds[c + 1] - first;
        for (int64_t j = 0; j < n; ++j)
            s.pairs[j] = T(LOG2E) * dot(x + i * d, h.keys + (first + j) * row, d) - s.tops[i];
        for (int64_t j = n; j < padded(n); ++j) s.pairs[j] = LOWEST<T>;
        for (int32_t place = firsts[c]; place < firsts[c + 1]; ++place) s.pairs[exact[place] - first] = LOWEST<T>;
        met += n - (firsts[c + 1] - firsts[c]);
        const T top = *std::max_element(s.pairs, s.pairs + n);
        if (top > T(ROOM)) {
            const T factor = exp2_one<T>(-top);
            s.tops[i] += top;
            s.masses[i] *= factor;
            s.read[i] *= factor;
            scale(s.sums + i * w, w, factor);
            for (int64_t b = 0; b < n_clusters; ++b) s.weights[b * columns + i] *= factor;
            for (int64_t j = 0; j < n; ++j) s.pairs[j] -= top;
        }
        vec<T> mass{};
        for (int64_t j = 0; j < n; j += N) {
            const vec<T> t = load(s.pairs + j), weight = t > T(0.1) * LOWEST<T> ? exp2<T>(t) : vec<T>{};
            store(s.pairs + j, weight);
            mass += weight;
        }
        s.masses[i] += sum<T>(mass);
        product<true>(1, w, n, s.pairs, n, h.keys + first * row + d, row, s.sums + i * w, w);
    }
    return met;
}

// Write queries as columns, times log₂ e and a factor: (n, D) → (D, columns), zeros beyond n.
template <class T>
void load_columns(const T* x, int64_t n, int64_t columns, int64_t d, T factor, T* out) {
    for (int64_t k = 0; k < d; ++k) {
        for (int64_t q = 0; q < n; ++q) out[k * columns + q] = x[q * d + k] * (factor * T(LOG2E));
        fill(out + k * columns + n, columns - n, T(0));
    }
}

// Forget all sums of a tile.
template <class T>
void clear_sums(int64_t columns, int64_t width, BlockScratch<T>& s) {
    clear(s.sums, columns * width), clear(s.masses, columns), clear(s.read, columns);
    fill(s.tops, columns, LOWEST<T>);
}

// Sum over exact keys and summaries, for n queries of the group that is the i-th of its block.
//
// `x` are their rows, `widths` their γ(x), `mean` is rᵢ. The sums are s.sums and s.masses + s.read, times 2^s.tops. Returns numbers of
// openings and of keys that queries meet there.
template <class T>
std::pair<int64_t, int64_t> read_tile(const Sizes& a, const Head<T>& h, int64_t i, const T* mean, const T* x,
                                      const T* widths, int64_t n, const T* before, T limit, BlockScratch<T>& s) {
    const int64_t d = a.columns(), row = a.row(), w = row - d, n_clusters = a.clusters(), columns = padded(n);
    const int32_t *exact = s.lists + i * a.n_keys, *firsts = s.firsts + i * (n_clusters + 1);
    load_columns(x, n, columns, d, T(1), s.x);
    clear_sums(columns, w, s);
    for (int64_t start = 0; start < s.sizes[i]; start += SOME_KEYS) {
        const int64_t some = std::min<int64_t>(SOME_KEYS, s.sizes[i] - start);
        product<false>(some, columns, d, h.keys, row, s.x, columns, s.weights, columns, exact + start);
        weigh(s.weights, some, columns, w, s, s.masses);
        product_transposed<true>(n, w, some, s.weights, columns, h.keys + d, row, s.sums, w, exact + start);
    }
    const T *summaries = s.summaries + i * n_clusters * row, *biases = s.biases + i * n_clusters;
    for (int64_t c = 0; c < n_clusters; ++c) fill(s.weights + c * columns, columns, biases[c]);
    product<true>(n_clusters, columns, d, summaries, row, s.x, columns, s.weights, columns);
    weigh(s.weights, n_clusters, columns, w, s, s.read);
    if (h.extents) {
        for (int64_t c = 0; c < n_clusters; ++c)
            fill(s.spans + c * columns, columns, -dot(mean, h.extents + c * d, d) * T(LOG2E));
        product<true>(n_clusters, columns, d, h.extents, d, s.x, columns, s.spans, columns);
        scale(s.spans, n_clusters * columns, T(1 / LOG2E));
    }
    const int64_t n_hits = find_opened(a, h, widths, n, columns, before, limit, s);
    const int64_t met = open_clusters(a, h, x, columns, exact, firsts, n_hits, s);
    product_transposed<true>(n, w, n_clusters, s.weights, columns, summaries + d, row, s.sums, w);
    return {n_hits, met};
}

// Write the outputs of one group, the i-th of its block; return numbers of openings and of keys that queries meet there.
template <class T>
std::pair<int64_t, int64_t> read_group(const SummarisedCall& a, const Head<T>& h, int64_t head, int64_t group,
                                       int64_t i, BlockScratch<T>& s) {
    const int64_t d = a.columns(), w = a.row() - d, begin = h.bounds[group], n = h.bounds[group + 1] - begin;
    const T limit = static_cast<const T*>(a.opening_limits)[head];
    const auto found =
        read_tile<T>(a, h, i, nullptr, h.queries + begin * d, h.query_widths + begin, n, nullptr, limit, s);
    T* out = static_cast<T*>(a.out) + head * a.length * a.width;
    T* log_masses = static_cast<T*>(a.log_masses) + head * a.length;
    for (int64_t q = 0; q < n; ++q) {
        const T mass = s.masses[q] + s.read[q];
        scaled(s.sums + q * w, a.width, T(1) / mass, out + h.order[begin + q] * a.width);
        log_masses[h.order[begin + q]] = s.tops[q] + std::log2(mass);
    }
    return found;
}

// Compute the outputs of a block of groups.
template <class T>
void attend(const SummarisedCall& a, const Head<T>& h, int64_t head, int64_t first, BlockScratch<T>& s, Found& found) {
    score(a, h, first, s);
    const T limit = static_cast<const T*>(a.limits)[head];
    for (int64_t i = 0; i < GROUPS; ++i) s.totals[i] += limit;
    summarise(a, h, s);
    for (int64_t i = 0; i < std::min(GROUPS, a.groups() - first); ++i) {
        const int64_t group = first + i, place = head * a.groups() + group;
        const auto [n_hits, met] = read_group(a, h, head, group, i, s);
        a.sizes[place] = s.sizes[i], a.openings[place] = n_hits, a.met[place] = met;
        if (!a.keep) continue;
        found.exact.insert(found.exact.end(), s.lists + i * a.n_keys, s.lists + i * a.n_keys + s.sizes[i]);
        for (int64_t hit = 0; hit < n_hits; ++hit) {
            found.opened.push_back(int32_t(h.bounds[group]) + s.hits[2 * hit + 1]);
            found.opened.push_back(s.hits[2 * hit]);
        }
    }
}

// Compute all heads. A thread computes a head from beginning to end, in memory that stays in its cache; the last heads,
// fewer than there are threads, are shared out in blocks of groups.
template <class T>
void summarised_forward(const SummarisedCall& a, Found& found) {
    static thread_local Arena shared;
    const int64_t blocks = (a.groups() + GROUPS - 1) / GROUPS, alone = a.n - a.n % a.threads, rest = a.n - alone;
    std::vector<Found> parts(alone + rest * blocks);
    parallel(alone, int(a.threads), [&](int64_t head, int) {
        static thread_local Arena arena;
        arena.reset(Head<T>::bytes(a) + std::max(bytes_to_prepare<T>(a), BlockScratch<T>::bytes(a)));
        Head<T> h(arena, a, head);
        const auto mark = arena.mark();
        prepare(a, head, arena, h, false);
        arena.back_to(mark);
        BlockScratch<T> scratch(arena, a);
        for (int64_t block = 0; block < blocks; ++block) attend(a, h, head, block * GROUPS, scratch, parts[head]);
    });
    if (rest) {
        shared.reset(rest * Head<T>::bytes(a));
        std::vector<Head<T>> heads;
        for (int64_t i = 0; i < rest; ++i) heads.emplace_back(shared, a, alone + i);
        parallel(rest, int(a.threads), [&](int64_t i, int) {
            static thread_local Arena arena;
            arena.reset(bytes_to_prepare<T>(a));
            prepare(a, alone + i, arena, heads[i], false);
        });
        parallel(rest * blocks, int(a.threads), [&](int64_t task, int) {
            static thread_local Arena arena;
            arena.reset(BlockScratch<T>::bytes(a));
            BlockScratch<T> scratch(arena, a);
            const int64_t i = task / blocks;
            attend(a, heads[i], alone + i, task % blocks * GROUPS, scratch, parts[alone + task]);
        });
    }
    for (const Found& part : parts) {
        found.exact.insert(found.exact.end(), part.exact.begin(), part.exact.end());
        found.opened.insert(found.opened.end(), part.opened.begin(), part.opened.end());
    }
}

}  // namespace hrf
