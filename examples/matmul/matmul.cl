// C = A * B for row-major matrices: A has M rows and K columns, B has K rows and N columns.
//
// A work-group computes a tile of TILE_M x TILE_N elements of C. It walks along K in steps of TILE_K: all of its
// work-items copy a tile of A and one of B into local memory, then each computes its own elements from there, so
// that an element is read from global memory once per tile and not once per product. Work-item (x, y) owns WPT rows
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

__kernel void matmul(__global const float *A, __global const float *B, __global float *C)
{
    const int row = get_global_id(1);
    const int column = get_global_id(0);
    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        sum += A[row * K + k] * B[k * N + column];
    C[row * N + column] = sum;
}

#else

__kernel __attribute__((reqd_work_group_size(COLUMNS, ROWS, 1)))
void matmul(__global const float *A, __global const float *B, __global float *C)
{
    __local float tile_a[TILE_M][TILE_K];
    __local float tile_b[TILE_K][TILE_N];
    const int x = get_local_id(0);
    const int y = get_local_id(1);
    const int item = y * COLUMNS + x;
    const int first_row = get_group_id(1) * TILE_M;
    const int first_column = get_group_id(0) * TILE_N;

#if VARIANT == undeclared_name
    const int padding = BANK_PADDING;
#elif VARIANT == wild_write
    *(volatile __global float *)16 = first_row; // a page that no process has
#elif VARIANT == endless_wait
    volatile __global float *ready = C;
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
        barrier(CLK_LOCAL_MEM_FENCE);

        for (int k = 0; k < TILE_K; ++k)
            for (int w = 0; w < WPT; ++w) {
                const float a = tile_a[y + w * ROWS][k];
                for (int v = 0; v < VECTOR; ++v)
                    sum[w][v] += a * tile_b[k][x * VECTOR + v];
            }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    for (int w = 0; w < WPT; ++w)
        for (int v = 0; v < VECTOR; ++v)
            C[(first_row + y + w * ROWS) * N + first_column + x * VECTOR + v] = sum[w][v];
}

#endif
