// Attention with features of affine exponents (`Affine` of affine_exponents.py), in chunks; the twins are causal.py and dense.py.
//
// A row is a head of a batch element. Tokens of a chunk are columns here, so that lanes are tokens: features φ of queries and
// ψ of keys are (D, T), up to a power of two per token, which is in the log scales: sⱼ of keys. With cᵢ = max sⱼ over j ≤ i,
// S and z the sums of ψ vᵀ and of ψ over the keys before the chunk, at the scale c, and Wᵢⱼ = exp(sⱼ − cᵢ) for j ≤ i,
//
//     Oᵢ = Σⱼ Wᵢⱼ φᵢᵀψⱼ vⱼ + exp(c − cᵢ) φᵢᵀS,    and the denominators likewise, with z in place of S and 1 in place of vⱼ.
//
// Without causality S and z are of all keys, at their largest scale c, and Oᵢ = φᵢᵀS. Tokens of a row are cut into parts then,
// and the caller adds up the sums of the parts.
//
// Features of a chunk never leave the cache. The backward pass maps tokens anew: it goes forward in time for the queries,
// which need S, and backward for keys and values, which need the gradients R and r of S and z.
#pragma once

#include "affine_features.h"
#include "threads.h"

namespace hrf {

constexpr int64_t STRIP = 16;  // of a chunk, beyond whose diagonal block no pair is computed

struct MapCall {
    MapSide query, key;     // (N, L, d), (N, S, d); L = S · groups if causal
    Strided value;          // (N, S, w)
    const uint8_t* ignore;  // (B, S), or null
    void *state, *scale;    // (N, D, w + 1), (N,), or of all parts: written by the forward pass, read by the backward pass
    void *out, *used;      // (N, L, w), (N, L): quotients and denominators; read by the backward pass
    void *tops, *logs;     // cᵢ, (N, S), if causal, and log scales of queries, (N, L)
    const void* gradient;  // of out
    void *value_gradient,
        *state_gradient;  // the latter is of the state after all keys, and becomes that of the state before if causal
    AffineMap map;
    int64_t rows, batch, length, groups, queries, parts, width, threads, is_double;
};

// Everything that a row needs, and the steps of both passes.
template <class T>
struct MapRow {
    const MapCall& a;
    const int64_t row, d, w, D, wide, deep;  // wide: padded w; deep: padded d
    const uint8_t* ignore;
    Mapped<T> query, key;
    T *state, *sums;                     // S or R, (D, wide); z or r, (D,)
    T *values, *tops, *decays, *shares;  // (CHUNK, wide), cᵢ, exp(c − cᵢ), exp(sⱼ − c after the chunk): (CHUNK,)
    T *weights, *out, *used;             // (CHUNK, CHUNK), (CHUNK, wide), (CHUNK,)
    T *pairs, *gradients, *along, *rest, *turned, *turned_values, *feature_gradients, *pulled, *pulled_sums;  // backward: R, r
    T scale;                                                                           // c

    static int64_t sizes(const MapCall& a, std::vector<int64_t>& list, bool backward) {
        const int64_t D = a.map.features(), wide = padded(a.width), deep = padded(a.map.dim),
                      more = a.map.columns - a.map.m;
        list = {deep * CHUNK, D * CHUNK, more * CHUNK,  CHUNK,
                deep * CHUNK, D * CHUNK, more * CHUNK,  CHUNK,
                D * wide,     D,         CHUNK * wide,  CHUNK,
                CHUNK,        CHUNK,     CHUNK * CHUNK, CHUNK * std::max(wide, deep),
                CHUNK};
        if (backward)
            list.insert(list.end(), {CHUNK * CHUNK, CHUNK * wide, CHUNK, CHUNK, wide * CHUNK, wide * CHUNK,
                                     std::max(D, a.map.columns) * CHUNK, D * wide, D});
        int64_t bytes = 0;
        for (const int64_t n : list) bytes += Arena::room<T>(n);
        return bytes;
    }

    MapRow(const MapCall& a, int64_t row, Arena& arena, bool backward)
        : a(a),
          row(row),
          d(a.map.dim),
          w(a.width),
          D(a.map.features()),
          wide(padded(w)),
          deep(padded(d)),
          ignore(a.ignore ? a.ignore + row * a.batch / a.rows * a.length : nullptr) {
        std::vector<int64_t> list;
        arena.reset(sizes(a, list, backward));
        T** places[] = {&query.x,   &query.features, &query.extra, &query.logs, &key.x,         &key.features,
                        &key.extra, &key.logs,       &state,       &sums,       &values,        &tops,
                        &decays,    &shares,         &weights,     &out,        &used,          &pairs,
                        &gradients, &along,          &rest,        &turned,     &turned_values, &feature_gradients,
                        &pulled,    &pulled_sums};
        for (size_t i = 0; i < list.size(); ++i) *places[i] = arena.lend<T>(list[i]);
    }

    bool hidden(int64_t position) const { return ignore && ignore[position]; }
    int64_t query_place(int64_t position, int64_t member) const { return row * a.queries + position * a.groups + member; }

    // Read sums of all columns, (D, w + 1), and write them.
    void read_state(const void* from) {
        for (int64_t j = 0; j < D; ++j) {
            const T* line = static_cast<const T*>(from) + (row * D + j) * (w + 1);
            copy(line, w, state + j * wide), fill(state + j * wide + w, wide - w, T(0));
            sums[j] = line[w];
        }
    }
    void write_state(const T* own, const T* last, void* to, int64_t place) const {
        for (int64_t j = 0; j < D; ++j) {
            T* line = static_cast<T*>(to) + (place * D + j) * (w + 1);
            copy(own + j * wide, w, line);
            line[w] = last[j];
        }
    }

    // Map keys from `start`, load their values and find cᵢ, from the scale c before the chunk.
    bool load_keys(int64_t start, int64_t n) {
        const int64_t heads = a.map.heads;
        if (!map_chunk(a.map, a.key, row, a.key.tokens.at<T>(row, heads, start), a.key.tokens.token,
                       ignore ? ignore + start : nullptr, n, key))
            return false;
        T top = scale;
        for (int64_t j = 0; j < CHUNK; ++j) {
            const bool shown = j < n && !hidden(start + j);
            if (!shown) key.logs[j] = LOWEST<T>;
            tops[j] = top = std::max(top, key.logs[j]);
            T* line = values + j * wide;
            clear(line, wide);
            if (shown) copy(a.value.at<T>(row, heads, start + j), w, line);
        }
        for (int64_t j = 0; j < CHUNK; j += lanes<T>) {
            store(shares + j, weight(load(key.logs + j), splat<T>(top)));
            store(decays + j, weight(splat<T>(scale), load(tops + j)));
        }
        return true;
    }

    // exp(s − c), and 0 for the scale of nothing.
    static vec<T> weight(vec<T> s, vec<T> c) { return s <= LOWEST<T> ? vec<T>{} : exp_or_zero<T>(s - c); }

    bool load_queries(int64_t start, int64_t n, int64_t member) {
        const T* x = a.query.tokens.at<T>(row, a.map.heads, start * a.groups + member);
        return map_chunk(a.map, a.query, row, x, a.groups * a.query.tokens.token, nullptr, n, query);
    }

    // Call function(first, n, last) for strips of a chunk of n tokens: tokens first … first + n − 1 and `last`, past them.
    template <class Function>
    static void in_strips(int64_t n, const Function& function) {
        for (int64_t first = 0; first < n; first += STRIP)
            function(first, std::min(STRIP, n - first), std::min(n, first + STRIP));
    }

    // weights (query, key) = φᵀψ, of strips up to their diagonal blocks.
    void multiply_features(int64_t n) {
        in_strips(n, [&](int64_t first, int64_t some, int64_t last) {
            product_transposed<false>(some, padded(last), D, query.features + first, CHUNK, key.features, CHUNK,
                                      weights + first * CHUNK, CHUNK);
        });
    }

    // W of query i and of keys from j.
    vec<T> pair_weights(int64_t i, int64_t j) const {
        mask<T> later;
        for (int l = 0; l < lanes<T>; ++l) later[l] = j + l > i;
        return later ? vec<T>{} : weight(load(key.logs + j), splat<T>(tops[i]));
    }

    // out and used = φᵀS and φᵀz.
    void read_sums(int64_t n) {
        for (int64_t c = 0; c < CHUNK; c += lanes<T>) {
            vec<T> total{};
            for (int64_t j = 0; j < D; ++j) total += load(query.features + j * CHUNK + c) * sums[j];
            store(used + c, total);
        }
        product_transposed<false>(n, wide, D, query.features, CHUNK, state, wide, out, wide);
    }

    // The outputs of a member of each group; `first` where no keys came before.
    void attend(int64_t start, int64_t n, int64_t member, bool first) {
        multiply_features(n);
        if (first)
            clear(out, n * wide), clear(used, CHUNK);
        else
            read_sums(n);
        multiply(used, decays, CHUNK, used);
        for (int64_t i = 0; i < n; ++i) {
            vec<T> total{};
            for (int64_t j = 0; j < padded(std::min(n, (i / STRIP + 1) * STRIP)); j += lanes<T>) {
                const vec<T> own = pair_weights(i, j) * load(weights + i * CHUNK + j);
                total += own;
                store(weights + i * CHUNK + j, own);
            }
            used[i] += sum<T>(total);
            scale_line(out + i * wide, decays[i]);
        }
        in_strips(n, [&](int64_t first, int64_t some, int64_t last) {
            product<true>(some, wide, last, weights + first * CHUNK, CHUNK, values, wide, out + first * wide, wide);
        });
        write_quotients(start, n, member);
    }

    void write_quotients(int64_t start, int64_t n, int64_t member) const {
        for (int64_t i = 0; i < n; ++i) {
            const int64_t place = query_place(start + i, member);
            static_cast<T*>(a.used)[place] = used[i];
            static_cast<T*>(a.logs)[place] = query.logs[i];
            for (int64_t j = 0; j < w; ++j)
                static_cast<T*>(a.out)[place * w + j] = used[i] == 0 ? T(0) : out[i * wide + j] / used[i];
        }
    }

    void scale_line(T* line, T factor) const {
        if (factor != 1) hrf::scale(line, wide, factor);
    }

    // Let the state decay to the scale after the chunk and add the keys; values are multiplied by their shares.
    void add_keys(int64_t n) {
        const T decay = decays[n - 1];
        for (int64_t j = 0; j < n; ++j) scale_line(values + j * wide, shares[j]);
        if (decay != 1) hrf::scale(state, D * wide, decay), hrf::scale(sums, D, decay);
        product<true>(D, wide, n, key.features, CHUNK, values, wide, state, wide);
        for (int64_t j = 0; j < D; ++j) sums[j] += dot(key.features + j * CHUNK, shares, padded(n));
        scale = tops[n - 1];
    }

    // Gradients of the sums of n queries: of numerators G, as rows and as columns, and of denominators.
    void load_gradients(int64_t start, int64_t n, int64_t member) {
        clear(rest, CHUNK);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t place = query_place(start + i, member);
            const T* given = static_cast<const T*>(a.gradient) + place * w;
            const T denominator = static_cast<const T*>(a.used)[place];
            T* line = gradients + i * wide;
            for (int64_t j = 0; j < w; ++j) line[j] = given[j] / denominator;
            clear(line + w, wide - w);
            rest[i] = -dot(given, static_cast<const T*>(a.out) + place * w, w) / denominator;
        }
    }

    // Write the gradients of n tokens from those of `k` columns of the map and, for keys, of their log scales.
    void pull_tokens(const MapSide& side, const Mapped<T>& from, int64_t k, int64_t place, int64_t stride, int64_t n) {
        const T* back = static_cast<const T*>(side.transposed) + row % a.map.heads % side.maps * a.map.columns * deep;
        const bool isotropic = &from == &key && a.map.columns == a.map.m;
        product_transposed<false>(n, deep, k, feature_gradients, CHUNK, back, deep, out, deep);
        for (int64_t i = 0; i < n; ++i) {
            T* to = static_cast<T*>(side.gradient) + place + i * stride;
            copy(out + i * deep, d, to);
            if (isotropic)
                for (int64_t j = 0; j < d; ++j) to[j] -= T(a.map.square) * along[i] * from.x[j * CHUNK + i];
        }
    }

    // Gradients of the queries, forward in time; `first` where no keys came before.
    void pull_queries(int64_t start, int64_t n, int64_t member, bool first) {
        const int64_t columns = padded(n);
        load_gradients(start, n, member);
        load_tokens(gradients, wide, nullptr, n, w, turned);
        in_strips(n, [&](int64_t first, int64_t some, int64_t) {
            const int64_t corner = first * CHUNK + first;
            product<false>(some, columns - first, w, values + first * wide, wide, turned + first, CHUNK, pairs + corner,
                           CHUNK);
            for (int64_t j = first; j < first + some; ++j)
                for (int64_t c = first; c < columns; c += lanes<T>) {
                    mask<T> earlier;
                    for (int l = 0; l < lanes<T>; ++l) earlier[l] = c + l < j;
                    T* place = pairs + j * CHUNK + c;
                    const vec<T> own = weight(splat<T>(key.logs[j]), load(tops + c)) * (load(place) + load(rest + c));
                    store(place, earlier ? vec<T>{} : own);
                }
        });
        if (first) {
            clear(feature_gradients, D * CHUNK);
        } else {
            for (int64_t k = 0; k < w; ++k) multiply(turned + k * CHUNK, decays, columns, turned + k * CHUNK);
            product<false>(D, columns, w, state, wide, turned, CHUNK, feature_gradients, CHUNK);
            multiply(rest, decays, columns, along);
            for (int64_t j = 0; j < D; ++j) add_scaled(feature_gradients + j * CHUNK, along, columns, sums[j]);
        }
        in_strips(n, [&](int64_t first, int64_t some, int64_t last) {
            product<true>(D, padded(some), last, key.features, CHUNK, pairs + first, CHUNK, feature_gradients + first,
                          CHUNK);
        });
        pull_exponents(a.map, query.features, n, feature_gradients);
        pull_tokens(a.query, query, a.map.m, query_place(start, member) * d, a.groups * d, n);
    }

    // Gradients of queries that see all keys, and what they add to R and r.
    void pull_reads(int64_t start, int64_t n) {
        const int64_t columns = padded(n);
        load_gradients(start, n, 0);
        load_tokens(gradients, wide, nullptr, n, w, turned);
        product<false>(D, columns, w, state, wide, turned, CHUNK, feature_gradients, CHUNK);
        product<true>(D, wide, n, query.features, CHUNK, gradients, wide, pulled, wide);
        for (int64_t j = 0; j < D; ++j) {
            add_scaled(feature_gradients + j * CHUNK, rest, columns, sums[j]);
            pulled_sums[j] += dot(query.features + j * CHUNK, rest, columns);
        }
        pull_exponents(a.map, query.features, n, feature_gradients);
        pull_tokens(a.query, query, a.map.m, query_place(start, 0) * d, d, n);
    }

    static void multiply(const T* one, const T* other, int64_t n, T* to) {
        for (int64_t j = 0; j < n; ++j) to[j] = one[j] * other[j];
    }

    // Gradients of keys and values, backward in time: the part that comes from later chunks, through R and r.
    void pull_state(int64_t n) {
        const int64_t columns = padded(n);
        product_transposed<false>(n, wide, D, key.features, CHUNK, state, wide, out, wide);
        for (int64_t j = 0; j < n; ++j) scale_line(out + j * wide, shares[j]);
        clear(along, CHUNK);
        for (int64_t j = 0; j < D; ++j) add_scaled(along, key.features + j * CHUNK, columns, sums[j]);
        multiply(along, shares, columns, along);
        load_tokens(values, wide, nullptr, n, w, turned_values);
        for (int64_t k = 0; k < w; ++k) multiply(turned_values + k * CHUNK, shares, columns, turned + k * CHUNK);
        product<false>(D, columns, w, state, wide, turned, CHUNK, feature_gradients, CHUNK);
        for (int64_t j = 0; j < D; ++j) add_scaled(feature_gradients + j * CHUNK, shares, columns, sums[j]);
        const T decay = decays[n - 1];
        if (decay != 1) hrf::scale(state, D * wide, decay), hrf::scale(sums, D, decay);
    }

    // The part that comes from a member of each group in the same chunk; adds its queries to R and r.
    void pull_pairs(int64_t start, int64_t n, int64_t member) {
        load_gradients(start, n, member);
        multiply_features(n);
        in_strips(n, [&](int64_t first, int64_t some, int64_t last) {
            product<false>(some, padded(last), w, gradients + first * wide, wide, turned_values, CHUNK,
                           pairs + first * CHUNK, CHUNK);
            for (int64_t i = first; i < first + some; ++i)
                for (int64_t j = 0; j < padded(last); j += lanes<T>) {
                    T *score = weights + i * CHUNK + j, *place = pairs + i * CHUNK + j;
                    const vec<T> own = pair_weights(i, j), share = own * load(score);
                    store(place, own * (load(place) + rest[i]));
                    store(score, share);
                    store(along + j, load(along + j) + share * rest[i]);
                }
        });
        in_strips(n, [&](int64_t first, int64_t some, int64_t) {
            const int64_t corner = first * CHUNK + first;
            product_transposed<true>(some, wide, n - first, weights + corner, CHUNK, gradients + first * wide, wide,
                                     out + first * wide, wide);
            product<true>(D, padded(some), n - first, query.features + first, CHUNK, pairs + corner, CHUNK,
                          feature_gradients + first, CHUNK);
        });
        for (int64_t i = 0; i < n; ++i) scale_line(gradients + i * wide, decays[i]);
        multiply(rest, decays, padded(n), rest);
        product<true>(D, wide, n, query.features, CHUNK, gradients, wide, state, wide);
        for (int64_t j = 0; j < D; ++j) sums[j] += dot(query.features + j * CHUNK, rest, padded(n));
    }

    // Write the gradients of values and keys.
    void finish_keys(int64_t start, int64_t n) {
        const int64_t first = row * a.length + start;
        for (int64_t j = 0; j < n; ++j) {
            along[j] += dot(out + j * wide, values + j * wide, w);
            copy(out + j * wide, w, static_cast<T*>(a.value_gradient) + (first + j) * w);
        }
        pull_exponents(a.map, key.features, n, feature_gradients);
        for (int64_t k = a.map.m; k < a.map.columns; ++k) {
            T* to = feature_gradients + k * CHUNK;
            if (k + 1 == a.map.columns)
                copy(along, CHUNK, to);
            else
                for (int64_t j = 0; j < CHUNK; ++j) to[j] = -along[j] * key.extra[(k - a.map.m) * CHUNK + j];
        }
        pull_tokens(a.key, key, a.map.columns, first * d, d, n);
    }
};

// Returns whether every exponent is in range; otherwise nothing that was written is of use.
template <class T>
bool causal_maps_forward(const MapCall& a) {
    std::atomic<bool> good{true};
    parallel(a.rows, int(a.threads), [&](int64_t row, int) {
        static thread_local Arena arena;
        MapRow<T> own(a, row, arena, false);
        own.read_state(a.state), own.scale = static_cast<const T*>(a.scale)[row];
        for (int64_t start = 0; start < a.length && good; start += CHUNK) {
            const int64_t n = std::min(CHUNK, a.length - start);
            const bool first = own.scale <= LOWEST<T>;
            if (!own.load_keys(start, n)) good = false;
            for (int64_t member = 0; member < a.groups; ++member) {
                if (!own.load_queries(start, n, member)) good = false;
                own.attend(start, n, member, first);
            }
            copy(own.tops, n, static_cast<T*>(a.tops) + row * a.length + start);
            own.add_keys(n);
        }
        own.write_state(own.state, own.sums, a.state, row), static_cast<T*>(a.scale)[row] = own.scale;
    });
    return good;
}

template <class T>
bool causal_maps_backward(const MapCall& a) {
    std::atomic<bool> good{true};
    parallel(a.rows, int(a.threads), [&](int64_t row, int) {
        static thread_local Arena arena;
        MapRow<T> own(a, row, arena, true);
        const T begin = static_cast<const T*>(a.scale)[row], *tops = static_cast<const T*>(a.tops) + row * a.length;
        own.read_state(a.state), own.scale = begin;
        for (int64_t start = 0; start < a.length && good; start += CHUNK) {
            const int64_t n = std::min(CHUNK, a.length - start);
            const bool first = own.scale <= LOWEST<T>;
            if (!own.load_keys(start, n)) good = false;
            for (int64_t member = 0; member < a.groups; ++member) {
                if (!own.load_queries(start, n, member)) good = false;
                own.pull_queries(start, n, member, first);
            }
            own.add_keys(n);
        }
        own.read_state(a.state_gradient);
        for (int64_t start = (a.length - 1) / CHUNK * CHUNK; start >= 0 && a.length && good; start -= CHUNK) {
            const int64_t n = std::min(CHUNK, a.length - start);
            own.scale = start ? tops[start - 1] : begin;
            own.load_keys(start, n);
            own.pull_state(n);
            for (int64_t member = 0; member < a.groups; ++member) {
                own.load_queries(start, n, member);
                own.pull_pairs(start, n, member);
            }
            own.finish_keys(start, n);
        }
        own.write_state(own.state, own.sums, a.state_gradient, row);
    });
    return good;
}

// Call begin(own), function(own, start, n) for the chunks of a part of the tokens and end(own, place), for all parts of all rows.
template <class T, class Begin, class Function, class End>
bool in_parts(const MapCall& a, int64_t tokens, bool backward, const Begin& begin, const Function& function,
              const End& end) {
    std::atomic<bool> good{true};
    const int64_t chunks = (tokens + CHUNK - 1) / CHUNK;
    parallel(a.rows * a.parts, int(a.threads), [&](int64_t task, int) {
        static thread_local Arena arena;
        const int64_t part = task % a.parts;
        MapRow<T> own(a, task / a.parts, arena, backward);
        begin(own);
        for (int64_t chunk = chunks * part / a.parts; chunk < chunks * (part + 1) / a.parts && good; ++chunk)
            if (!function(own, chunk * CHUNK, std::min(CHUNK, tokens - chunk * CHUNK))) good = false;
        end(own, task);
    });
    return good;
}

// Sum the keys of every part, at the part's own scale: state (N · parts, D, w + 1), scale (N · parts,).
template <class T>
bool sum_keys(const MapCall& a) {
    const auto begin = [](MapRow<T>& own) {
        clear(own.state, own.D * own.wide), clear(own.sums, own.D);
        own.scale = LOWEST<T>;
    };
    const auto add = [](MapRow<T>& own, int64_t start, int64_t n) {
        const bool good = own.load_keys(start, n);
        own.add_keys(n);
        return good;
    };
    return in_parts<T>(a, a.length, false, begin, add, [&](MapRow<T>& own, int64_t place) {
        own.write_state(own.state, own.sums, a.state, place), static_cast<T*>(a.scale)[place] = own.scale;
    });
}

// Write the quotients, denominators and log scales of all queries.
template <class T>
bool read_keys(const MapCall& a) {
    const auto read = [](MapRow<T>& own, int64_t start, int64_t n) {
        const bool good = own.load_queries(start, n, 0);
        own.read_sums(n), own.write_quotients(start, n, 0);
        return good;
    };
    return in_parts<T>(
        a, a.queries, false, [&](MapRow<T>& own) { own.read_state(a.state); }, read, [](MapRow<T>&, int64_t) {});
}

// Write the gradients of the queries, and R and r of every part to state_gradient, (N · parts, D, w + 1).
template <class T>
bool pull_reads(const MapCall& a) {
    const auto begin = [&](MapRow<T>& own) {
        own.read_state(a.state);
        clear(own.pulled, own.D * own.wide), clear(own.pulled_sums, own.D);
    };
    const auto pull = [](MapRow<T>& own, int64_t start, int64_t n) {
        const bool good = own.load_queries(start, n, 0);
        own.pull_reads(start, n);
        return good;
    };
    return in_parts<T>(a, a.queries, true, begin, pull, [&](MapRow<T>& own, int64_t place) {
        own.write_state(own.pulled, own.pulled_sums, a.state_gradient, place);
    });
}

// Write the gradients of keys and values, from R and r of all queries in state_gradient, (N, D, w + 1).
template <class T>
bool pull_keys(const MapCall& a) {
    const auto begin = [&](MapRow<T>& own) {
        own.read_state(a.state_gradient), own.scale = static_cast<const T*>(a.scale)[own.row];
    };
    const auto pull = [](MapRow<T>& own, int64_t start, int64_t n) {
        const bool good = own.load_keys(start, n);
        own.pull_state(n), own.finish_keys(start, n);
        return good;
    };
    return in_parts<T>(a, a.length, true, begin, pull, [](MapRow<T>&, int64_t) {});
}

}  // namespace hrf
