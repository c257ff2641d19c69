// Causal summarised attention by recursion, as in summarised/recursion.py.
//
// Query i of a head sees keys 0 … i. Keys of its own diagonal block (`base` long) and the first SINK keys are exact. All
// others come in blocks: keys [s, s + B) are read by queries [s + B, s + 2B), for B = base · 2ⁱ and s a multiple of 2B.
// A block is summarised for cells, which are made of its own queries ("members"), all of them earlier than its readers.
// Cells, lists and limits depend on tokens before s + B, everything else on the reader itself, so that the output of a
// query does not change by one bit with later tokens.
#pragma once

#include <mutex>

#include "summarised_forward.h"

namespace hrf {

constexpr int64_t TILE = 64;                            // queries at a time
constexpr int64_t SINK = 16;                            // first keys, which many heads give most of their mass
constexpr int64_t EVERY = 4;  // members are every fourth query, or fewer
constexpr int64_t MEMBERS = 256, MEMBERS_PER_CELL = 8;  // at least, where there are so many
constexpr int64_t SAMPLED_KEYS = 1024;                  // that the metric of cells is found from

struct CausalCall {
    int64_t dim, width, n, batch, per_key, length, n_keys, base, n_sizes, turned,
        n_blocks;                                             // D and W are multiples of PAD
    const void *x, *y, *v;                                    // (N, L, D), (N / per_key, S, D), (N / per_key, S, W)
    const int64_t *first_query, *queries, *first_key, *keys;  // of each batch item: its rows without padding
    const void *cosines, *sines;                              // of the turn by each size, (n_sizes, turned), if any
    const int64_t* levels;                                    // of cells and clusters for each size, (n_sizes, 2)
    const void *earlier, *earlier_masses;  // (N, ·, D), (N, ·): every EVERY-th query before x, if any
    int64_t n_earlier;
    void *out, *log_masses;      // (N, L, W), (N, L): log₂
    const int64_t* offsets;      // (n_blocks + 1, 3): where rows, cells and clusters of each block begin
    int32_t *order, *key_order;  // the plan, if it is kept: (N, rows) each
    int64_t *bounds, *key_bounds, *sizes, *openings;  // (N, cells), (N, clusters), (N, cells) twice
    void *means, *widths, *metrics, *query_widths;    // (N, cells, D), (N, cells), (N, blocks, D, D), (N, rows)
    int64_t* pairs;                                   // (N,): exact pairs in blocks
    double root, log_tolerance, opening, test_limit;
    int64_t keep, threads, is_double;

    int64_t row() const { return dim + width; }
};

// The block before boundary j · base.
struct Block {
    int64_t j, level, size, start, end;

    Block(const CausalCall& a, int64_t j)
        : j(j), level(__builtin_ctzll(j)), size(a.base << level), start(j * a.base - size), end(j * a.base) {}
    int64_t first_key() const { return start ? start : SINK; }
    int64_t n_keys() const { return end - first_key(); }
    int64_t step(int64_t cells) const { return std::max(EVERY, size / std::max(MEMBERS, MEMBERS_PER_CELL * cells)); }
};

// One row: the queries and keys of a head of a batch item, without padding.
template <class T>
struct Row {
    int64_t n, prefix, index;  // keys; keys before the first query; among all rows
    const T *x, *y, *v;        // x begins with query `prefix`
    const T *earlier, *earlier_masses;
    T *out, *log_masses;

    Row(const CausalCall& a, int64_t index) : index(index) {
        const int64_t item = index / (a.n / a.batch), key = index / a.per_key;
        n = a.keys[item], prefix = n - a.queries[item];
        const int64_t q = index * a.length + a.first_query[item], k = key * a.n_keys + a.first_key[item];
        x = static_cast<const T*>(a.x) + q * a.dim, y = static_cast<const T*>(a.y) + k * a.dim;
        v = static_cast<const T*>(a.v) + k * a.width;
        earlier = a.n_earlier ? static_cast<const T*>(a.earlier) + index * a.n_earlier * a.dim : nullptr;
        earlier_masses = a.n_earlier ? static_cast<const T*>(a.earlier_masses) + index * a.n_earlier : nullptr;
        out = static_cast<T*>(a.out) + q * a.width, log_masses = static_cast<T*>(a.log_masses) + q;
    }
    const T* query(int64_t position, int64_t dim) const {
        return position >= prefix ? x + (position - prefix) * dim : earlier + position / EVERY * dim;
    }
    T log_mass(int64_t position) const {
        return position >= prefix ? log_masses[position - prefix] : earlier_masses[position / EVERY];
    }
    // How many of the first keys the queries of diagonal block b compute exactly: the sink, or blocks without members.
    int64_t exact_keys(const CausalCall& a, int64_t b) const {
        int64_t found = 0;
        for (int64_t rest = b; rest && found < prefix && !earlier;) {
            const int64_t blocks = int64_t(1) << (63 - __builtin_clzll(rest));
            found += blocks * a.base, rest -= blocks;
        }
        return b ? std::max(found, SINK) : 0;
    }
    // Readers of a block: [first, last). A block without members has none.
    std::pair<int64_t, int64_t> readers(const Block& block) const {
        const int64_t last = std::min(n, block.end + block.size);
        return {block.start < prefix && !earlier ? last : std::min(std::max(block.end, prefix), last), last};
    }
};

// Merge sums of a query, times 2^top, into its output and the logarithm of its mass.
template <class T>
void merge(const T* sums, T mass, T top, int64_t width, T* out, T& log_mass) {
    const T found = top + std::log2(std::max(mass, TINY<T>)), both = std::max(found, log_mass);
    const T a = exp2_one<T>(log_mass - both), b = exp2_one<T>(found - both), total = a + b;
    const T old_share = a / total, share = b / total / std::max(mass, TINY<T>);
    for (int64_t k = 0; k < width; ++k) out[k] = out[k] * old_share + sums[k] * share;
    log_mass = both + std::log2(total);
}

// Add n_keys keys, rows of y and v, to the sums of n queries in s.x. With `Diagonal`, query q sees keys 0 … q only.
template <bool Diagonal, class T>
void meet(const T* y, const T* v, int64_t n_keys, int64_t d, int64_t w, int64_t n, BlockScratch<T>& s) {
    const int64_t columns = padded(n);
    for (int64_t start = 0; start < n_keys; start += SOME_KEYS) {
        const int64_t some = std::min(SOME_KEYS, n_keys - start);
        product<false>(some, columns, d, y + start * d, d, s.x, columns, s.weights, columns);
        if constexpr (Diagonal)
            for (int64_t j = 1; j < some; ++j) fill(s.weights + j * columns, std::min(start + j, columns), LOWEST<T>);
        weigh<Diagonal>(s.weights, some, columns, w, s, s.masses);
        product_transposed<true>(n, w, some, s.weights, columns, v + start * w, w, s.sums, w);
    }
}

// Compute what diagonal block b of a row finds in its own keys and in the first ones.
template <class T>
void attend_diagonal(const CausalCall& a, const Row<T>& row, int64_t b, BlockScratch<T>& s) {
    const int64_t d = a.dim, w = a.width, first = b * a.base, end = std::min(first + a.base, row.n);
    for (int64_t start = std::max(first, row.prefix); start < end; start += TILE) {
        const int64_t n = std::min(TILE, end - start);
        load_columns(row.x + (start - row.prefix) * d, n, padded(n), d, T(a.root * a.root), s.x);
        clear_sums(padded(n), w, s);
        meet<false>(row.y, row.v, row.exact_keys(a, b), d, w, n, s);
        meet<false>(row.y + first * d, row.v + first * w, start - first, d, w, n, s);
        meet<true>(row.y + start * d, row.v + start * w, n, d, w, n, s);
        for (int64_t q = 0; q < n; ++q) {
            const int64_t place = start - row.prefix + q;
            scaled(s.sums + q * w, w, T(1) / s.masses[q], row.out + place * w);
            row.log_masses[place] = s.tops[q] + std::log2(s.masses[q]);
        }
    }
}

// Cells of a block, and how readers find theirs: the nearest centre in the metric of the keys, z = x · factor.
template <class T>
struct Cells {
    T *factor, *centres, *halves, *outside;  // (D, D), (D, padded G), −|centre|²/2, mean log₂ mass of members
    T *tests, *test_masses,
        *test_widths;  // the member of each cell that is farthest from the centre: (G, D), log₂ mass, γ(x)
    T pooled;          // mean of |z|² of a new query

    static size_t bytes(int64_t d, int64_t g) {
        return Arena::room<T>(d * d) + Arena::room<T>(d * padded(g)) + 4 * Arena::room<T>(padded(g)) +
               Arena::room<T>(g * d);
    }
    Cells(Arena& arena, int64_t d, int64_t g)
        : factor(arena.lend<T>(d * d)),
          centres(arena.lend<T>(d * padded(g))),
          halves(arena.lend<T>(padded(g))),
          outside(arena.lend<T>(padded(g))),
          tests(arena.lend<T>(g * d)),
          test_masses(arena.lend<T>(padded(g))),
          test_widths(arena.lend<T>(padded(g))) {}
    Cells(T* factor, T* centres, T* halves, T pooled)
        : factor(factor), centres(centres), halves(halves), pooled(pooled) {}
};

// Find the nearest cell of n queries; z receives their coordinates (n, D), scores has room for (n, padded G).
template <class T>
void find_cells(const T* x, int64_t n, int64_t d, int64_t g, const Cells<T>& cells, T* z, T* scores, int32_t* found) {
    product<false>(n, d, d, x, d, cells.factor, d, z, d);
    for (int64_t j = 0; j < n; ++j) copy(cells.halves, padded(g), scores + j * padded(g));
    product<true>(n, padded(g), d, z, d, cells.centres, padded(g), scores, padded(g));
    for (int64_t j = 0; j < n; ++j) {
        const T* own = scores + j * padded(g);
        found[j] = int32_t(std::max_element(own, own + g) - own);
    }
}

// γ(x) of a query with coordinates z in a cell.
template <class T>
T width_in(const Cells<T>& cells, int64_t d, int64_t g, int64_t cell, const T* z) {
    T length = 0;
    for (int64_t k = 0; k < d; ++k) {
        const T t = z[k] - cells.centres[k * padded(g) + cell];
        length += t * t;
    }
    return length / cells.pooled;
}

// Copy a member as its readers would be on average, turned forward by the size of the block: R(B) q.
template <class T>
void turn(const CausalCall& a, int64_t level, const T* query, T* out) {
    const T *cosine = static_cast<const T*>(a.cosines) + level * a.turned,
            *sine = static_cast<const T*>(a.sines) + level * a.turned;
    const T root = T(a.root);
    scaled(query, a.dim, root, out);
    for (int64_t k = 0, half = a.turned; k < half; ++k) {
        out[k] = root * (query[k] * cosine[k] - query[k + half] * sine[k]);
        out[k + half] = root * (query[k + half] * cosine[k] + query[k] * sine[k]);
    }
}

inline int64_t most_members(const Sizes& a, int64_t size) {
    return std::min(size / EVERY, std::max(MEMBERS, MEMBERS_PER_CELL * a.groups()) * 2);
}

// Make cells of the members of a block: h.means, h.widths and h.metric, and how to find them.
template <class T>
void make_cells(const CausalCall& a, const Sizes& sizes, const Row<T>& row, const Block& block, Arena& arena,
                Head<T>& h, Cells<T>& cells) {
    const int64_t d = a.dim, g = sizes.groups(), step = block.step(g), m = (block.size + step - 1) / step;
    T *members = arena.lend<T>(m * d), *sorted = arena.lend<T>(m * d), *residuals = arena.lend<T>(m * d);
    const int64_t n_sampled = std::min(block.n_keys(), SAMPLED_KEYS);
    T *sample = arena.lend<T>(n_sampled * d), *of_keys = arena.lend<T>(d * d), *spare = arena.lend<T>((64 + 1) * d);
    int32_t* order = arena.lend<int32_t>(m);
    int64_t* bounds = arena.lend<int64_t>(g + 1);
    TreeScratch<T> scratch(arena, m, d);
    for (int64_t j = 0; j < m; ++j) turn(a, block.level, row.query(block.start + j * step, d), members + j * d);
    for (int64_t j = 0; j < n_sampled; ++j)
        scaled(row.y + (block.first_key() + j * block.n_keys() / n_sampled) * d, d, T(a.root), sample + j * d);
    covariance(sample, n_sampled, d, spare, spare + d, of_keys);
    project_on_leading(members, m, d, of_keys, scratch);
    copy(scratch.factor, d * d, cells.factor);
    balanced(m, int(sizes.levels), scratch, order, bounds);
    for (int64_t j = 0; j < m; ++j) copy(members + order[j] * d, d, sorted + j * d);
    centre(sorted, d, d, bounds, g, h.means, residuals);
    // Of a cell with k members, a new query is farther from the mean than a member: by (1 + 1/k) / (1 − 1/k).
    const T share = T(g) / T(m), grow = (1 + share) / std::max(1 - share, T(0.25));
    product_transposed<false>(d, d, m, residuals, d, residuals, d, h.metric, d);
    scale(h.metric, d * d, grow / T(m));
    T* z = sorted;
    product<false>(m, d, d, residuals, d, cells.factor, d, z, d);
    T total = 0;
    for (int64_t i = 0; i < g; ++i) {
        T length = 0, mass = 0;
        for (int64_t j = bounds[i]; j < bounds[i + 1]; ++j) {
            length += dot(z + j * d, z + j * d, d);
            mass += row.log_mass(block.start + order[j] * step);
        }
        const T k = T(std::max<int64_t>(bounds[i + 1] - bounds[i], 1));
        h.widths[i] = length / k, cells.outside[i] = mass / k;
        total += length;
    }
    cells.pooled = std::max(total * grow / T(m), TINY<T>);
    for (int64_t i = 0; i < g; ++i) h.widths[i] = std::max(h.widths[i] * grow / cells.pooled, T(1e-6));
    fill(cells.halves, padded(g), LOWEST<T>);
    clear(cells.centres, d * padded(g));
    product<false>(g, d, d, h.means, d, cells.factor, d, z, d);
    for (int64_t i = 0; i < g; ++i) {
        for (int64_t k = 0; k < d; ++k) cells.centres[k * padded(g) + i] = z[i * d + k];
        cells.halves[i] = -T(0.5) * dot(z + i * d, z + i * d, d);
    }
    // Members test the cell that they would read as readers.
    clear(cells.tests, g * d), fill(cells.test_widths, padded(g), T(-1));
    for (int64_t j = 0; j < m; ++j) {
        int32_t cell;
        find_cells(members + j * d, 1, d, g, cells, z, residuals, &cell);
        const T width = width_in(cells, d, g, cell, z);
        if (width <= cells.test_widths[cell]) continue;
        cells.test_widths[cell] = width, cells.test_masses[cell] = row.log_mass(block.start + j * step);
        copy(members + j * d, d, cells.tests + cell * d);
    }
}

// Sort the readers of a block by cell: h.queries, h.query_widths, h.order and h.bounds.
template <class T>
void sort_readers(const CausalCall& a, const Sizes& sizes, const Row<T>& row, int64_t first, Arena& arena,
                  const Cells<T>& cells, Head<T>& h) {
    const int64_t d = a.dim, g = sizes.groups();
    T *x = arena.lend<T>(TILE * d), *z = arena.lend<T>(h.n * d), *scores = arena.lend<T>(TILE * padded(g));
    int32_t* cell = arena.lend<int32_t>(h.n);
    std::fill(h.bounds, h.bounds + g + 1, 0);
    for (int64_t start = 0; start < h.n; start += TILE) {
        const int64_t n = std::min(TILE, h.n - start);
        scaled(row.x + (first - row.prefix + start) * d, n * d, T(a.root), x);
        find_cells(x, n, d, g, cells, z + start * d, scores, cell + start);
    }
    for (int64_t j = 0; j < h.n; ++j) ++h.bounds[cell[j] + 1];
    for (int64_t i = 0; i < g; ++i) h.bounds[i + 1] += h.bounds[i];
    std::vector<int64_t> next(h.bounds, h.bounds + g);
    for (int64_t j = 0; j < h.n; ++j) {
        const int64_t to = next[cell[j]]++;
        h.order[to] = int32_t(j);
        scaled(row.x + (first - row.prefix + j) * d, d, T(a.root), h.queries + to * d);
        h.query_widths[to] = width_in(cells, d, g, cell[j], z + j * d);
    }
}

// Put the keys of a block into clusters, in the metric h.metric.
template <class T>
void cluster_block(const CausalCall& a, const Sizes& sizes, const Row<T>& row, const Block& block, Arena& arena,
                   Head<T>& h, bool planned) {
    const int64_t d = a.dim, n = block.n_keys();
    T *y = arena.lend<T>(n * d), *spare = arena.lend<T>(n * d);
    h.n_keys = n;
    const T *own_y = row.y + block.first_key() * d, *own_v = row.v + block.first_key() * a.width;
    if (!planned) {
        TreeScratch<T> scratch(arena, n, d);
        scaled(own_y, n * d, T(a.root), y);
        project_on_leading(y, n, d, h.metric, scratch);
        balanced(n, int(sizes.key_levels), scratch, h.key_order, h.key_bounds);
    }
    for (int64_t j = 0; j < n; ++j) {
        T* key = h.keys + j * a.row();
        scaled(own_y + h.key_order[j] * d, d, T(a.root), key);
        copy(own_v + h.key_order[j] * a.width, a.width, key + d);
    }
    describe_clusters(sizes, spare, y, h);
}

// Let all keys be exact for the i-th cell of the block in s.
template <class T>
void make_exact(const Sizes& a, const Head<T>& h, int64_t i, BlockScratch<T>& s) {
    for (int64_t j = 0; j < h.n_keys; ++j) s.lists[i * a.n_keys + j] = int32_t(j);
    for (int64_t c = 0; c <= a.clusters(); ++c) s.firsts[i * (a.clusters() + 1) + c] = int32_t(h.key_bounds[c]);
    fill(s.biases + i * a.clusters(), a.clusters(), LOWEST<T>);
    s.sizes[i] = int32_t(h.n_keys);
}

// Compare summaries with keys for one member of each of some cells, and let all keys be exact where it would go wrong.
//
// With the sums N_e, M_e of the keys that summaries replace, and N_s, M_s of these summaries, the member's output o would
// change by ((N_s − N_e) − (M_s − M_e) o) / mass. The model of widths and spreads does not see a key without weight for
// the mean of a cell; this does. Clusters that the member opens are left out on both sides, and o is what it finds in
// the whole block. s.tile is free by now: it receives the weights of all keys, a column per cell.
template <class T>
void test_cells(const CausalCall& a, const Sizes& sizes, const Head<T>& h, const Cells<T>& cells, int64_t start,
                int64_t some, BlockScratch<T>& s) {
    const int64_t d = a.dim, w = a.width, row = a.row(), n_clusters = sizes.clusters();
    alignas(64) T tops[GROUPS], all[GROUPS] = {}, replaced[GROUPS] = {}, by_summaries[GROUPS] = {};
    for (int64_t i = 0; i < GROUPS; ++i) {
        const int64_t cell = start + std::min(i, some - 1);
        tops[i] = cells.test_masses[cell];
        for (int64_t k = 0; k < d; ++k) s.columns[k * GROUPS + i] = cells.tests[cell * d + k] * T(LOG2E);
    }
    product<false>(h.n_keys, GROUPS, d, h.keys, row, s.columns, GROUPS, s.tile, GROUPS);
    maxima(s.tile, h.n_keys, GROUPS, tops);
    exponentials<false>(s.tile, h.n_keys, GROUPS, tops, all);
    product_transposed<false>(GROUPS, w, h.n_keys, s.tile, GROUPS, h.keys + d, row, s.tested, row);
    clear(s.found, GROUPS * row);
    for (int64_t i = 0; i < some; ++i) {
        const int32_t* list = s.lists + i * sizes.n_keys;
        const T *summaries = s.summaries + i * n_clusters * row, *biases = s.biases + i * n_clusters,
                *test = cells.tests + (start + i) * d;
        const T mass = std::max(all[i], exp2_one<T>(cells.test_masses[start + i] - tops[i]));
        for (int32_t place = 0; place < s.sizes[i]; ++place) s.tile[list[place] * GROUPS + i] = 0;
        for (int64_t c = 0; c < n_clusters; ++c) {
            if (biases[c] < T(0.1) * LOWEST<T>) continue;  // all keys are exact
            const T weight =
                exp2_one<T>(std::min(biases[c] + T(LOG2E) * dot(test, summaries + c * row, d) - tops[i], T(FAR)));
            const T* extent = h.extents + c * d;
            const T span = dot(test, extent, d) - dot(h.means + (start + i) * d, extent, d);
            const T relative =
                deviation<T>(splat<T>(cells.test_widths[start + i] * h.mean_spreads[c] + span * span))[0];
            if (weight * relative >= T(a.opening) * mass) {
                for (int64_t j = h.key_bounds[c]; j < h.key_bounds[c + 1]; ++j) s.tile[j * GROUPS + i] = 0;
            } else {
                by_summaries[i] += weight;
                add_scaled(s.found + i * row, summaries + c * row + d, w, weight);
            }
        }
        tops[i] = mass;
    }
    for (int64_t j = 0; j < h.n_keys; ++j) add_scaled(replaced, s.tile + j * GROUPS, GROUPS, T(1));
    for (int64_t i = 0; i < GROUPS * row; ++i) s.found[i] = -s.found[i];
    product_transposed<true>(GROUPS, w, h.n_keys, s.tile, GROUPS, h.keys + d, row, s.found, row);
    for (int64_t i = 0; i < some; ++i) {
        if (cells.test_widths[start + i] < 0) continue;  // no member would read this cell
        T change = 0, size = 0;
        for (int64_t k = 0; k < w; ++k) {
            const T own = s.tested[i * row + k] / all[i],
                    t = s.found[i * row + k] - (replaced[i] - by_summaries[i]) * own;
            change += t * t, size += own * own;
        }
        const T limit = T(a.test_limit) * tops[i];
        if (!(change <= limit * limit * size)) make_exact(sizes, h, i, s);
    }
}

inline Sizes sizes_of(const CausalCall& a, const Block& block) {
    const int64_t* levels = a.levels + 2 * block.level;
    return {(TILE - 1) << levels[0], block.n_keys(), a.dim, a.width, levels[0], levels[1]};
}

// Head of a block whose readers are at most block.size; the plan's parts lie in the arrays that are kept, or in the arena.
template <class T>
struct BlockHead : Head<T> {
    static Sizes with_readers(Sizes sizes, int64_t readers) { return sizes.length = readers, sizes; }
    static size_t bytes(const CausalCall& a, const Block& block) {
        const Sizes sizes = sizes_of(a, block);
        return Head<T>::bytes(with_readers(sizes, block.size)) + Arena::room<T>(sizes.clusters() * a.dim) +
               2 * Arena::room<int32_t>(block.size) + Arena::room<int64_t>(sizes.groups() + 1) +
               Arena::room<int64_t>(sizes.clusters() + 1);
    }
    BlockHead(Arena& arena, const CausalCall& a, const Block& block, int64_t row)
        : Head<T>(arena, with_readers(sizes_of(a, block), block.size)) {
        const Sizes sizes = sizes_of(a, block);
        this->extents = arena.lend<T>(sizes.clusters() * a.dim);
        const int64_t *offset = a.offsets + 3 * (block.j - 1), *all = a.offsets + 3 * a.n_blocks;
        if (!a.keep) {
            this->order = arena.lend<int32_t>(block.size), this->key_order = arena.lend<int32_t>(block.size);
            this->bounds = arena.lend<int64_t>(sizes.groups() + 1),
            this->key_bounds = arena.lend<int64_t>(sizes.clusters() + 1);
            return;
        }
        const int64_t rows = row * all[0] + offset[0], cells = row * all[1] + offset[1];
        this->order = a.order + rows, this->key_order = a.key_order + rows;
        this->bounds = a.bounds + cells, this->key_bounds = a.key_bounds + row * all[2] + offset[2];
        this->means = static_cast<T*>(a.means) + cells * a.dim, this->widths = static_cast<T*>(a.widths) + cells;
        this->metric = static_cast<T*>(a.metrics) + (row * a.n_blocks + block.j - 1) * a.dim * a.dim;
        this->query_widths = static_cast<T*>(a.query_widths) + rows;
    }
};

// Merge what the readers of one cell, the i-th of its block of cells, find in a block of keys.
template <class T>
std::pair<int64_t, int64_t> read_cell(const CausalCall& a, const Sizes& sizes, const Row<T>& row, int64_t first,
                                      const Head<T>& h, int64_t cell, int64_t i, BlockScratch<T>& s,
                                      std::vector<int32_t>* opened) {
    const int64_t d = a.dim, w = a.width;
    std::pair<int64_t, int64_t> total{0, 0};
    alignas(64) T before[TILE] = {};
    for (int64_t start = h.bounds[cell]; start < h.bounds[cell + 1]; start += TILE) {
        const int64_t n = std::min(TILE, h.bounds[cell + 1] - start), place = first - row.prefix;
        for (int64_t q = 0; q < n; ++q) before[q] = row.log_masses[place + h.order[start + q]];
        const auto [n_hits, met] = read_tile(sizes, h, i, h.means + cell * d, h.queries + start * d,
                                             h.query_widths + start, n, before, T(a.opening), s);
        for (int64_t q = 0; q < n; ++q) {
            const int64_t reader = place + h.order[start + q];
            merge(s.sums + q * w, s.masses[q] + s.read[q], s.tops[q], w, row.out + reader * w, row.log_masses[reader]);
        }
        if (opened)
            for (int64_t hit = 0; hit < n_hits; ++hit) {
                opened->push_back(int32_t(start) + s.hits[2 * hit + 1]);
                opened->push_back(s.hits[2 * hit]);
            }
        total.first += n_hits, total.second += met + s.sizes[i] * n;
    }
    return total;
}

// Choose exact keys and sum up the others for some cells of a block, from cell `start` on.
template <class T>
void summarise_for_cells(const CausalCall& a, const Sizes& sizes, const Block& block, const Head<T>& h,
                         const Cells<T>& cells, int64_t start, int64_t some, BlockScratch<T>& s) {
    // log₂ of the largest error of a key: τ/S · ⁴√(S/512), for S keys that a reader sees on average.
    const double seen = double(block.start) + 1.5 * double(block.size);
    const T limit = T(a.log_tolerance - 0.75 * std::log2(seen) - 0.25 * 9);
    score(sizes, h, start, s);
    for (int64_t i = 0; i < GROUPS; ++i)
        s.totals[i] = limit + std::max(s.totals[i], cells.outside[start + std::min(i, some - 1)]);
    summarise(sizes, h, s);
    if (a.test_limit < FAR) test_cells(a, sizes, h, cells, start, some, s);
}

// Let the readers of a block read it.
template <class T>
void serve(const CausalCall& a, const Row<T>& row, const Block& block, Arena& arena, Found& found) {
    const auto [first, last] = row.readers(block);
    const Sizes sizes = sizes_of(a, block);
    BlockHead<T> h(arena, a, block, row.index);
    h.n = last - first;
    int64_t* counts =
        a.keep ? a.sizes + row.index * a.offsets[3 * a.n_blocks + 1] + a.offsets[3 * (block.j - 1) + 1] : nullptr;
    int64_t* openings = a.keep ? a.openings + (counts - a.sizes) : nullptr;
    if (h.n <= 0) {
        if (a.keep) std::fill(h.bounds, h.bounds + sizes.groups() + 1, 0);
        return;
    }
    Cells<T> cells(arena, a.dim, sizes.groups());
    const auto mark = arena.mark();
    make_cells(a, sizes, row, block, arena, h, cells);
    arena.back_to(mark);
    sort_readers(a, sizes, row, first, arena, cells, h);
    arena.back_to(mark);
    cluster_block(a, sizes, row, block, arena, h, false);
    arena.back_to(mark);
    BlockScratch<T> s(arena, sizes);
    for (int64_t start = 0; start < sizes.groups(); start += GROUPS) {
        const int64_t some = std::min(GROUPS, sizes.groups() - start);
        if (h.bounds[start + some] == h.bounds[start]) continue;
        summarise_for_cells(a, sizes, block, h, cells, start, some, s);
        for (int64_t i = 0; i < some; ++i) {
            const int64_t cell = start + i;
            const auto [n_hits, met] = read_cell(a, sizes, row, first, h, cell, i, s, a.keep ? &found.opened : nullptr);
            a.pairs[row.index] += met;
            if (!a.keep) continue;
            counts[cell] = s.sizes[i], openings[cell] = n_hits;
            found.exact.insert(found.exact.end(), s.lists + i * sizes.n_keys, s.lists + i * sizes.n_keys + s.sizes[i]);
        }
    }
}

template <class T>
size_t bytes_to_serve(const CausalCall& a, const Block& block) {
    const Sizes sizes = sizes_of(a, block);
    const int64_t d = a.dim, g = sizes.groups(), m = most_members(sizes, block.size), n = block.size;
    const size_t cells = 3 * Arena::room<T>(m * d) + Arena::room<T>(std::min(n, SAMPLED_KEYS) * d) +
                         Arena::room<T>(d * d) + Arena::room<T>((64 + 1) * d) + Arena::room<int32_t>(m) +
                         Arena::room<int64_t>(g + 1) + TreeScratch<T>::bytes(m, d);
    const size_t readers =
        Arena::room<T>(TILE * d) + Arena::room<T>(n * d) + Arena::room<T>(TILE * padded(g)) + Arena::room<int32_t>(n);
    const size_t clusters = 2 * Arena::room<T>(n * d) + TreeScratch<T>::bytes(n, d);
    return BlockHead<T>::bytes(a, block) + Cells<T>::bytes(d, g) +
           std::max({cells, readers, clusters, BlockScratch<T>::bytes(sizes)});
}

// Call function(chain, step) for all steps of all chains, the steps of each chain one after the other.
template <class Function>
void in_chains(int64_t chains, int64_t steps, int threads, const Function& function) {
    std::mutex mutex;
    std::vector<int64_t> next(chains, 0);
    std::vector<bool> busy(chains, false);
    parallel(threads, threads, [&](int64_t, int) {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            int64_t own = -1;
            for (int64_t c = 0; c < chains; ++c)
                if (!busy[c] && next[c] < steps && (own < 0 || next[c] < next[own])) own = c;
            if (own < 0) return;
            busy[own] = true;
            lock.unlock();
            function(own, next[own]);
            lock.lock();
            busy[own] = false, ++next[own];
        }
    });
}

template <class T>
void causal_forward(const CausalCall& a, Found& found) {
    const int64_t diagonals = (a.n_keys + a.base - 1) / a.base;
    const Sizes tile{TILE - 1, 0, a.dim, a.width, 0, 0};
    parallel(a.n * diagonals, int(a.threads), [&](int64_t task, int) {
        static thread_local Arena arena;
        arena.reset(BlockScratch<T>::bytes(tile));
        BlockScratch<T> scratch(arena, tile);
        attend_diagonal(a, Row<T>(a, task / diagonals), task % diagonals, scratch);
    });
    if (!a.n_blocks) return;
    std::vector<Found> parts(a.n * a.n_blocks);
    in_chains(a.n, a.n_blocks, int(a.threads), [&](int64_t row, int64_t step) {
        static thread_local Arena arena;
        const Block block(a, step + 1);
        arena.reset(bytes_to_serve<T>(a, block));
        serve(a, Row<T>(a, row), block, arena, parts[row * a.n_blocks + step]);
    });
    for (const Found& part : parts) {
        found.exact.insert(found.exact.end(), part.exact.begin(), part.exact.end());
        found.opened.insert(found.opened.end(), part.opened.begin(), part.opened.end());
    }
}

}  // namespace hrf
