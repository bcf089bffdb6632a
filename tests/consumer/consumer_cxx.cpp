// What a C++ program looks like: the library's objects in unique_ptr, its statuses as
// exceptions.
#include <entwine/entwine.h>
#include <entwine/measure.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

namespace
{

struct destroy {
    void operator()(ew_world *world) const
    {
        ew_world_destroy(world);
    }
    void operator()(ew_plan *plan) const
    {
        ew_plan_destroy(plan);
    }
};

void check(ew_status status)
{
    if (status != EW_OK)
        throw std::runtime_error(ew_last_error());
}

long long wrong_values(int64_t m, int64_t n, int64_t k)
{
    ew_problem problem = EW_PROBLEM(m, n, k, EW_FP32);
    std::vector<float> A(static_cast<std::size_t>(m * k)),
        B(static_cast<std::size_t>(n * k)), C(static_cast<std::size_t>(m * n));
    ew_world *raw_world = nullptr;
    check(ew_world_create(0, 1, nullptr, nullptr, nullptr, &raw_world));
    std::unique_ptr<ew_world, destroy> world(raw_world);
    ew_plan *raw_plan = nullptr;
    check(ew_plan_create(world.get(), &problem, nullptr, &raw_plan));
    std::unique_ptr<ew_plan, destroy> plan(raw_plan);

    ew_check result = {-1, 0.0};
    check(ew_exact_fill_a(EW_FP32, 1, 0, 1, m, k, A.data()));
    check(ew_exact_fill_b(EW_FP32, 1, 0, EW_WEIGHT_NK, n, k, B.data()));
    check(ew_gemm_rs(plan.get(), m, A.data(), B.data(), C.data(), nullptr));
    check(ew_exact_verify(&problem, 1, 0, 1, m, C.data(), &result));
    return result.wrong;
}

} // namespace

int main()
{
    try {
        ew_world *world = nullptr;
        check(ew_world_create(2, 2, nullptr, nullptr, nullptr, &world)); // no such rank
        return 1;
    } catch (const std::runtime_error &error) {
        if (!*error.what())
            return 1;
    }
    try {
        return wrong_values(70, 40, 33) != 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
