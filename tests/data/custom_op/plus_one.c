/* An engine library with one custom operator, test.custom.PlusOne: y = x + 1 on float tensors of any shape.
 *
 * The engine's function table is addressed by the places of its entries, which never change, so that no header of the
 * engine is needed.
 */
#include <stddef.h>
#include <stdint.h>

enum {
    CREATE_DOMAIN = 26,
    DOMAIN_ADD = 27,
    ADD_DOMAIN = 28,
    TENSOR_DATA = 51,
    DIMENSION_COUNT = 61,
    DIMENSIONS = 62,
    ELEMENT_COUNT = 64,
    TYPE_AND_SHAPE = 65,
    CONTEXT_INPUT = 90,
    CONTEXT_OUTPUT = 91,
    RELEASE_TYPE_AND_SHAPE = 99,
    INFER_INPUT = 268,
    INFER_OUTPUT = 270,
    API_VERSION = 17,
    TYPE_FLOAT = 1,
    MOST_DIMS = 8
};

typedef void *(*Function)();
static Function *api;

#define CALL(place, ...)                             \
    do {                                             \
        void *status = api[place](__VA_ARGS__);      \
        if (status) return status;                   \
    } while (0)

struct Operator {
    uint32_t version;
    void *(*create_kernel)(const struct Operator *, const void *, const void *);
    const char *(*name)(const struct Operator *);
    const char *(*provider)(const struct Operator *);
    int (*input_type)(const struct Operator *, size_t);
    size_t (*input_count)(const struct Operator *);
    int (*output_type)(const struct Operator *, size_t);
    size_t (*output_count)(const struct Operator *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    int (*input_characteristic)(const struct Operator *, size_t);
    int (*output_characteristic)(const struct Operator *, size_t);
    int (*input_memory)(const struct Operator *, size_t);
    int (*variadic_input_arity)(const struct Operator *);
    int (*variadic_input_same)(const struct Operator *);
    int (*variadic_output_arity)(const struct Operator *);
    int (*variadic_output_same)(const struct Operator *);
    void *(*create_kernel_v2)(const struct Operator *, const void *, const void *, void **);
    void *(*compute_v2)(void *, void *);
    void *(*infer)(const struct Operator *, void *);
    int (*start_version)(const struct Operator *);
    int (*end_version)(const struct Operator *);
};

static const char *name(const struct Operator *self) { return "PlusOne"; }
static const char *provider(const struct Operator *self) { return NULL; }
static int type(const struct Operator *self, size_t index) { return TYPE_FLOAT; }
static size_t one(const struct Operator *self) { return 1; }
static int required(const struct Operator *self, size_t index) { return 0; }
static int memory(const struct Operator *self, size_t index) { return 0; }
static int single(const struct Operator *self) { return 1; }
static int last(const struct Operator *self) { return 0x7fffffff; }
static void destroy(void *kernel) {}

static void *create(const struct Operator *self, const void *table, const void *info, void **kernel) {
    *kernel = NULL;
    return NULL;
}

static void *compute(void *kernel, void *context) {
    const void *input;
    void *output, *shape;
    float *from, *to;
    int64_t dims[MOST_DIMS];
    size_t rank, count;
    CALL(CONTEXT_INPUT, context, (size_t)0, &input);
    CALL(TYPE_AND_SHAPE, input, &shape);
    CALL(DIMENSION_COUNT, shape, &rank);
    CALL(DIMENSIONS, shape, dims, rank);
    CALL(ELEMENT_COUNT, shape, &count);
    api[RELEASE_TYPE_AND_SHAPE](shape);
    CALL(CONTEXT_OUTPUT, context, (size_t)0, dims, rank, &output);
    CALL(TENSOR_DATA, input, &from);
    CALL(TENSOR_DATA, output, &to);
    for (size_t i = 0; i < count; ++i) to[i] = from[i] + 1.0f;
    return NULL;
}

static void *infer(const struct Operator *self, void *context) {
    void *shape;
    CALL(INFER_INPUT, context, (size_t)0, &shape);
    CALL(INFER_OUTPUT, context, (size_t)0, shape);
    return NULL;
}

static const struct Operator plus_one = {
    .version = API_VERSION,
    .name = name,
    .provider = provider,
    .input_type = type,
    .input_count = one,
    .output_type = type,
    .output_count = one,
    .destroy = destroy,
    .input_characteristic = required,
    .output_characteristic = required,
    .input_memory = memory,
    .variadic_input_arity = single,
    .variadic_input_same = single,
    .variadic_output_arity = single,
    .variadic_output_same = single,
    .create_kernel_v2 = create,
    .compute_v2 = compute,
    .infer = infer,
    .start_version = single,
    .end_version = last,
};

struct Base {
    void *(*table)(uint32_t);
};

__attribute__((visibility("default"))) void *RegisterCustomOps(void *options, const struct Base *base) {
    void *domain;
    api = base->table(API_VERSION);
    CALL(CREATE_DOMAIN, "test.custom", &domain);
    CALL(DOMAIN_ADD, domain, &plus_one);
    CALL(ADD_DOMAIN, options, domain);
    return NULL;
}
