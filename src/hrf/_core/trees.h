// Balanced trees: vectors cut into equal parts that are near each other in a metric, as in summarised/plan.py.
//
// Directions come from a sample of each part, and a part is cut at its median up to the width of a histogram's bin: parts
// are as even as the exact ones, and in which of two neighbours a vector near a border goes makes no difference. A path
// through the tree is cut along few directions, so vectors of DIRECTIONS numbers serve as well as longer ones.
#pragma once

#include <algorithm>

#include "products.h"
#include "threads.h"

namespace hrf {

constexpr int64_t DIRECTIONS = 16;

// Write the mean of the rows u (n, d) and, from them, their covariance (d, d). `block` has room for 64 rows.
template <class T>
void covariance(const T* u, int64_t n, int64_t dim, T* mean, T* block, T* out) {
    constexpr int64_t ROWS = 64;
    clear(mean, dim);
    clear(out, dim * dim);
    for (int64_t j = 0; j < n; ++j) add_scaled(mean, u + j * dim, dim, T(1));
    const T inverse = T(1) / std::max<int64_t>(n, 1);
    scale(mean, dim, inverse);
    for (int64_t start = 0; start < n; start += ROWS) {
        const int64_t some = std::min(ROWS, n - start);
        for (int64_t j = 0; j < some; ++j)
            for (int64_t k = 0; k < dim; ++k) block[j * dim + k] = u[(start + j) * dim + k] - mean[k];
        product_transposed<true>(dim, dim, some, block, dim, block, dim, out, dim);
    }
    scale(out, dim * dim, inverse);
}

// Write the Cholesky root R of a metric with some jitter, R Rᵀ = metric: |u R|² is uᵀ metric u.
template <class T>
void root(const T* metric, int64_t dim, T* out) {
    const T jitter = T(1e-5);
    T trace = 0;
    for (int64_t i = 0; i < dim; ++i) trace += metric[i * dim + i];
    clear(out, dim * dim);
    for (int64_t i = 0; i < dim; ++i)
        for (int64_t j = 0; j <= i; ++j) {
            const T rest = metric[i * dim + j] - dot(out + i * dim, out + j * dim, j);
            out[i * dim + j] = i == j ? std::sqrt(std::max(rest + jitter * trace, TINY<T>)) : rest / out[j * dim + j];
        }
}

// Write an orthonormal basis near the top eigenvectors of a symmetric matrix, (d, DIRECTIONS).
template <class T>
void top_eigenvectors(const T* matrix, int64_t dim, T* rows, T* images, T* out) {
    constexpr int ITERATIONS = 3;
    for (int64_t i = 0; i < DIRECTIONS; ++i)
        for (int64_t j = 0; j < dim; ++j)  // any start that no eigenvector is orthogonal to
            rows[i * dim + j] = T(std::sin(1.7 * double((i + 1) * (j + 1))));
    for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
        product<false>(DIRECTIONS, dim, dim, rows, dim, matrix, dim, images, dim);
        for (int64_t i = 0; i < DIRECTIONS; ++i) {
            T* row = images + i * dim;
            for (int64_t k = 0; k < i; ++k) add_scaled(row, images + k * dim, dim, -dot(row, images + k * dim, dim));
            scale(row, dim, T(1) / std::max(std::sqrt(dot(row, row, dim)), TINY<T>));
        }
        std::swap(rows, images);
    }
    for (int64_t j = 0; j < dim; ++j)
        for (int64_t i = 0; i < DIRECTIONS; ++i) out[j * DIRECTIONS + i] = rows[i * dim + j];
}

// Buffers for the trees of a head whose longer side has n rows.
template <class T>
struct TreeScratch {
    T *rows, *others, *factor, *image, *matrix, *sample, *small;
    int32_t *order, *bins;

    static size_t bytes(int64_t n, int64_t dim) {
        return 2 * Arena::room<T>(n * DIRECTIONS) + 3 * Arena::room<T>(dim * dim) + Arena::room<T>(SAMPLE * dim) +
               Arena::room<T>(8 * std::max(dim, DIRECTIONS) * DIRECTIONS) + 2 * Arena::room<int32_t>(n);
    }
    TreeScratch(Arena& arena, int64_t n, int64_t dim)
        : rows(arena.lend<T>(n * DIRECTIONS)),
          others(arena.lend<T>(n * DIRECTIONS)),
          factor(arena.lend<T>(dim * dim)),
          image(arena.lend<T>(dim * dim)),
          matrix(arena.lend<T>(dim * dim)),
          sample(arena.lend<T>(SAMPLE * dim)),
          small(arena.lend<T>(8 * std::max(dim, DIRECTIONS) * DIRECTIONS)),
          order(arena.lend<int32_t>(n)),
          bins(arena.lend<int32_t>(n)) {}

    static constexpr int64_t SAMPLE = 256 + 64;  // rows that directions are found from, and a block of them
};

// Write u F (n, DIRECTIONS) for a factor F such that |u F|² is uᵀ metric u, but for directions in which rows differ little.
template <class T>
void project_on_leading(const T* u, int64_t n, int64_t dim, const T* metric, TreeScratch<T>& s) {
    constexpr int64_t SAMPLE = 256;
    root(metric, dim, s.factor);
    if (dim <= DIRECTIONS) {
        product<false>(n, DIRECTIONS, dim, u, dim, s.factor, dim, s.rows, DIRECTIONS);
        return;
    }
    const int64_t some = std::min(n, SAMPLE);
    for (int64_t i = 0; i < some; ++i) copy(u + i * n / some * dim, dim, s.sample + i * dim);
    T *directions = s.small, *buffers = s.small + dim * DIRECTIONS;
    covariance(s.sample, some, dim, buffers, s.sample + SAMPLE * dim, s.matrix);
    product<false>(dim, dim, dim, s.matrix, dim, s.factor, dim, s.image, dim);
    product_transposed<false>(dim, dim, dim, s.factor, dim, s.image, dim, s.matrix, dim);
    top_eigenvectors(s.matrix, dim, buffers, buffers + dim * DIRECTIONS, directions);
    product<false>(dim, DIRECTIONS, dim, s.factor, dim, directions, DIRECTIONS, s.image, DIRECTIONS);
    product<false>(n, DIRECTIONS, dim, u, dim, s.image, DIRECTIONS, s.rows, DIRECTIONS);
}

// Write the top principal direction of n rows; return mean and standard deviation along it.
template <class T>
std::pair<T, T> principal_direction(const T* u, int64_t n, T* scratch, T* direction) {
    constexpr int64_t D = DIRECTIONS, SAMPLE = 64;
    constexpr int ITERATIONS = 6;
    const int64_t some = std::min(n, SAMPLE);
    if (some == 0) return {T(0), T(1)};
    T *sample = scratch, *matrix = scratch + SAMPLE * D, mean[D] = {}, image[D];
    for (int64_t i = 0; i < some; ++i) {
        copy(u + i * n / some * D, D, sample + i * D);
        add_scaled(mean, sample + i * D, D, T(1));
    }
    scale(mean, D, T(1) / some);
    for (int64_t i = 0; i < some; ++i) add_scaled(sample + i * D, mean, D, T(-1));
    product_transposed<false>(D, D, some, sample, D, sample, D, matrix, D);
    int64_t longest = 0;
    T trace = TINY<T>;
    for (int64_t k = 0; k < D; ++k) {
        trace += matrix[k * D + k];
        if (matrix[k * D + k] > matrix[longest * D + longest]) longest = k;
    }
    // With a trace of 1, powers neither overflow nor, with the largest eigenvalue at 1/d or more, underflow.
    scale(matrix, D * D, T(1) / trace);
    copy(matrix + longest * D, D, direction);
    scale(direction, D, T(1) / std::max(std::sqrt(dot(direction, direction, D)), TINY<T>));
    for (int i = 0; i < ITERATIONS / 2; ++i) {
        product<false>(1, D, D, direction, D, matrix, D, image, D);
        product<false>(1, D, D, image, D, matrix, D, direction, D);
    }
    scale(direction, D, T(1) / std::max(std::sqrt(dot(direction, direction, D)), TINY<T>));
    product<false>(1, D, D, direction, D, matrix, D, image, D);
    const T variance = dot(image, direction, D) * trace / some;
    return {dot(direction, mean, D), std::max(std::sqrt(variance), TINY<T>)};
}

// Cut the rows of s.rows (n, DIRECTIONS) into 2^levels parts: part p is order[bounds[p] : bounds[p + 1]].
template <class T>
void balanced(int64_t n, int levels, TreeScratch<T>& s, int32_t* order, int64_t* bounds) {
    constexpr int64_t D = DIRECTIONS, BINS = 256;
    constexpr T SPREADS = 3;  // standard deviations on both sides that bins cover
    T *u = s.rows, *spare = s.others, direction[D];
    int32_t *own = order, *spare_order = s.order, counts[BINS];
    for (int64_t j = 0; j < n; ++j) own[j] = int32_t(j);
    for (int level = 0; level < levels; ++level) {
        for (int64_t part = 0; part < int64_t(1) << level; ++part) {
            const int64_t first = part * n >> level, last = (part + 1) * n >> level;
            const int64_t middle = (2 * part + 1) * n >> (level + 1);
            const auto [base, spread] = principal_direction(u + first * D, last - first, s.sample, direction);
            const T factor = T(BINS) / (2 * SPREADS) / spread;
            std::fill(counts, counts + BINS, 0);
            for (int64_t j = first; j < last; ++j) {
                const T place = (dot(u + j * D, direction, D) - base) * factor + T(BINS / 2);
                // In this order, so that NaN is bin 0: no vector may have a bin that does not exist.
                const T inside = place > 0 ? place : T(0);
                s.bins[j] = int32_t(inside < BINS - 1 ? inside : T(BINS - 1));
                ++counts[s.bins[j]];
            }
            int64_t of_border = middle - first, border = 0;
            while (of_border > counts[border]) of_border -= counts[border++];
            int64_t left = first, right = middle;
            for (int64_t j = first; j < last; ++j) {
                const bool at_border = s.bins[j] == border && of_border > 0;
                of_border -= at_border;
                const bool goes_left = s.bins[j] < border || at_border;
                const int64_t to = goes_left ? left : right;
                left += goes_left, right += !goes_left;
                spare_order[to] = own[j];
                copy(u + j * D, D, spare + to * D);
            }
        }
        std::swap(u, spare);
        std::swap(own, spare_order);
    }
    if (own != order) std::copy(own, own + n, order);
    for (int64_t part = 0; part <= int64_t(1) << levels; ++part) bounds[part] = part * n >> levels;
}

}  // namespace hrf
