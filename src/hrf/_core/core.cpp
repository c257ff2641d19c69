// What Python calls. Every function takes a structure of 8-byte fields and its size, which must agree with Python's, and
// returns 0 where it does not.
#include "box.h"
#include "codes.h"
#include "decoding.h"
#include "map_attention.h"
#include "pairs.h"
#include "summarised_backward.h"
#include "summarised_causal.h"
#include "summarised_forward.h"
#include "summarised_steps.h"

#define HRF_EXPORT extern "C" __attribute__((visibility("default")))

namespace hrf {

Team team = nullptr;

template <class Call, class Single, class Double>
int64_t run(const Call* call, int64_t size, const Single& in_single, const Double& in_double) {
    if (size != sizeof(Call)) return 0;
    call->is_double ? in_double(*call) : in_single(*call);
    return 1;
}

template <class Single, class Double>
int64_t attend(const MapCall* call, int64_t size, const Single& in_single, const Double& in_double) {
    if (size != sizeof(MapCall)) return 0;
    return (call->is_double ? in_double(*call) : in_single(*call)) ? 1 : 2;
}

}  // namespace hrf

using namespace hrf;

// Use OpenMP's entry point, GOMP_parallel, or threads of our own where it is null.
HRF_EXPORT void set_team(void* entry) { team = reinterpret_cast<Team>(entry); }

// The widest instruction set that this processor and its system grant: 0 baseline, 1 AVX2 with FMA, 2 AVX-512.
HRF_EXPORT int64_t best_instructions() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

HRF_EXPORT int64_t prepare_codes(const PrepareCodes* call, int64_t size) {
    return run(call, size, prepare_codes<float>, prepare_codes<double>);
}

HRF_EXPORT int64_t write_codes(const CodeSums* call, int64_t size) {
    return run(call, size, code_sums<false, float>, code_sums<false, double>);
}

HRF_EXPORT int64_t read_codes(const CodeSums* call, int64_t size) {
    return run(call, size, code_sums<true, float>, code_sums<true, double>);
}

HRF_EXPORT int64_t meet_pairs(const Pairs* call, int64_t size) { return run(call, size, pairs<float>, pairs<double>); }

HRF_EXPORT int64_t clip_rows(const Box* call, int64_t size) {
    return run(call, size, clip_rows<float>, clip_rows<double>);
}

// Returns 1 after a step, and 2, with the state as it was, if a query or a key is not finite.
HRF_EXPORT int64_t decode(const Step* call, int64_t size) {
    bool done = false;
    const auto step = [&](auto number) {
        using T = decltype(number);
        if ((done = map_tokens<T>(*call))) advance<T>(*call);
    };
    if (size != sizeof(Step)) return 0;
    call->is_double ? step(double()) : step(float());
    return done ? 1 : 2;
}

// Return 1, or 2 if an exponent leaves the range or a token is not finite.
HRF_EXPORT int64_t causal_maps_forward(const MapCall* call, int64_t size) {
    return attend(call, size, causal_maps_forward<float>, causal_maps_forward<double>);
}

HRF_EXPORT int64_t causal_maps_backward(const MapCall* call, int64_t size) {
    return attend(call, size, causal_maps_backward<float>, causal_maps_backward<double>);
}

HRF_EXPORT int64_t sum_keys(const MapCall* call, int64_t size) {
    return attend(call, size, sum_keys<float>, sum_keys<double>);
}

HRF_EXPORT int64_t read_keys(const MapCall* call, int64_t size) {
    return attend(call, size, read_keys<float>, read_keys<double>);
}

HRF_EXPORT int64_t pull_reads(const MapCall* call, int64_t size) {
    return attend(call, size, pull_reads<float>, pull_reads<double>);
}

HRF_EXPORT int64_t pull_keys(const MapCall* call, int64_t size) {
    return attend(call, size, pull_keys<float>, pull_keys<double>);
}

// Returns what `take_found` reads and frees.
HRF_EXPORT int64_t summarised_forward(const SummarisedCall* call, int64_t size) {
    if (size != sizeof(SummarisedCall)) return 0;
    auto* found = new Found;
    call->is_double ? summarised_forward<double>(*call, *found) : summarised_forward<float>(*call, *found);
    return reinterpret_cast<int64_t>(found);
}

HRF_EXPORT int64_t causal_forward(const CausalCall* call, int64_t size) {
    if (size != sizeof(CausalCall)) return 0;
    auto* found = new Found;
    call->is_double ? causal_forward<double>(*call, *found) : causal_forward<float>(*call, *found);
    return reinterpret_cast<int64_t>(found);
}

// Returns what `take_found` reads and frees: the exact keys of all cells.
HRF_EXPORT int64_t keep_block(const KeepCall* call, int64_t size) {
    if (size != sizeof(KeepCall)) return 0;
    auto* found = new Found;
    call->causal.is_double ? keep_block<double>(*call, *found) : keep_block<float>(*call, *found);
    return reinterpret_cast<int64_t>(found);
}

HRF_EXPORT int64_t summarised_steps(const StepCall* call, int64_t size) {
    return run(call, size, summarised_steps<float>, summarised_steps<double>);
}

HRF_EXPORT int64_t summarised_backward(const SummarisedGradient* call, int64_t size) {
    if (size != sizeof(SummarisedGradient)) return 0;
    call->call.is_double ? summarised_backward<double>(*call) : summarised_backward<float>(*call);
    return 1;
}

HRF_EXPORT void found_sizes(int64_t found, int64_t* sizes) {
    const auto* own = reinterpret_cast<const Found*>(found);
    sizes[0] = int64_t(own->exact.size()), sizes[1] = int64_t(own->opened.size());
}

HRF_EXPORT void take_found(int64_t found, int32_t* exact, int32_t* opened) {
    auto* own = reinterpret_cast<Found*>(found);
    std::copy(own->exact.begin(), own->exact.end(), exact);
    std::copy(own->opened.begin(), own->opened.end(), opened);
    delete own;
}
