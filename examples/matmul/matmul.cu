// C = A * B for row-major matrices: A has M rows and K columns, B has K rows and N columns.
//
// A block computes a tile of TILE_M x TILE_N elements of C. It walks along K in steps of TILE_K: all of its
// threads copy a tile of A and one of B into shared memory, then each computes its own elements from there, so that
// an element is read from global memory once per tile and not once per product. Thread (x, y) owns WPT rows
// (y, y + ROWS, ...) of VECTOR neighbouring columns.
//
// Defined from outside: M, N, K, TILE_M, TILE_N, TILE_K, WPT, VECTOR; and VARIANT, one of these names. Those after
// `tiled` are planted mistakes.
#define naive 1
#define tiled 2
#define undeclared_name 3
#define wild_write 4
#define endless_wait 5
#define skipped_tile 6

#define COLUMNS (TILE_N / VECTOR)
#define ROWS (TILE_M / WPT)

#if VARIANT == skipped_tile
#define K_END (K - TILE_K)
#else
#define K_END K
#endif

#if VARIANT == naive

extern "C" __global__ void matmul(const float *A, const float *B, float *C)
{
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        sum += A[row * K + k] * B[k * N + column];
    C[row * N + column] = sum;
}

#else

extern "C" __global__ void __launch_bounds__(COLUMNS * ROWS)
matmul(const float *A, const float *B, float *C)
{
    __shared__ float tile_a[TILE_M][TILE_K];
    __shared__ float tile_b[TILE_K][TILE_N];
    const int x = threadIdx.x;
    const int y = threadIdx.y;
    const int item = y * COLUMNS + x;
    const int first_row = blockIdx.y * TILE_M;
    const int first_column = blockIdx.x * TILE_N;

#if VARIANT == undeclared_name
    const int padding = BANK_PADDING;
#elif VARIANT == wild_write
    *(volatile float *)16 = first_row; // an address that is not mapped
#elif VARIANT == endless_wait
    volatile float *ready = C;
    while (*ready != 1.0e30f) // which nobody writes
        ;
#endif

    float sum[WPT][VECTOR];
    for (int w = 0; w < WPT; ++w)
        for (int v = 0; v < VECTOR; ++v)
            sum[w][v] = 0.0f;

    for (int k0 = 0; k0 < K_END; k0 += TILE_K) {
        for (int i = item; i < TILE_M * TILE_K; i += ROWS * COLUMNS)
            tile_a[i / TILE_K][i % TILE_K] = A[(first_row + i / TILE_K) * K + k0 + i % TILE_K];
        for (int i = item; i < TILE_K * TILE_N; i += ROWS * COLUMNS)
            tile_b[i / TILE_N][i % TILE_N] = B[(k0 + i / TILE_N) * N + first_column + i % TILE_N];
        __syncthreads();

        for (int k = 0; k < TILE_K; ++k)
            for (int w = 0; w < WPT; ++w) {
                const float a = tile_a[y + w * ROWS][k];
                for (int v = 0; v < VECTOR; ++v)
                    sum[w][v] += a * tile_b[k][x * VECTOR + v];
            }
        __syncthreads();
    }

    for (int w = 0; w < WPT; ++w)
        for (int v = 0; v < VECTOR; ++v)
            C[(first_row + y + w * ROWS) * N + first_column + x * VECTOR + v] = sum[w][v];
}

#endif
