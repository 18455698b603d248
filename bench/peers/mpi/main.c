// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

#include "peer.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_DIFFERENT = 1, EXIT_USAGE = 2, MAX_ITERS = 1000000, MAX_HIDDEN = 1 << 20 };

struct options {
    const char *routing, *mode, *variant, *convention;
    int hidden, max_tokens, warmup, iters, validate;
    enum corrupt corrupt;
};

static int whole(const char *text, long low, long high, int *value) {
    char *end;
    long v = strtol(text, &end, 10);
    if (*end || end == text || v < low || v > high) return -1;
    *value = (int)v;
    return 0;
}

static int one_of(const char *text, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (strcmp(text, words[i]) == 0) return i;
    return -1;
}

static int set_option(struct options *o, int which, const char *arg) {
    static const char *const mode[] = {"ll", "normal", NULL}, *const variant[] = {"dedup", "flat", "both", NULL};
    static const char *const convention[] = {"loop", "barrier", NULL}, *const corrupt[] = {"none", "recv_x", "recv_count", "out", NULL};
    switch (which) {
    case 'r': o->routing = arg; return 0;
    case 'h': return whole(arg, 1, MAX_HIDDEN, &o->hidden);
    case 't': return whole(arg, 1, 1 << 22, &o->max_tokens);
    case 'm': o->mode = arg; return one_of(arg, mode);
    case 'v': o->variant = arg; return one_of(arg, variant);
    case 'w': return whole(arg, 0, MAX_ITERS, &o->warmup);
    case 'i': return whole(arg, 1, MAX_ITERS, &o->iters);
    case 'c': o->convention = arg; return one_of(arg, convention);
    case 'x': o->validate = 1; o->corrupt = (enum corrupt)one_of(arg, corrupt); return one_of(arg, corrupt);
    default: return -1;
    }
}

static int parse(int argc, char **argv, struct options *o, char *err) {
    static const struct option known[] = {
        {"routing", 1, 0, 'r'}, {"hidden", 1, 0, 'h'}, {"max-tokens", 1, 0, 't'}, {"mode", 1, 0, 'm'}, {"variant", 1, 0, 'v'},
        {"warmup", 1, 0, 'w'}, {"iters", 1, 0, 'i'}, {"convention", 1, 0, 'c'}, {"validate", 0, 0, 'V'}, {"corrupt", 1, 0, 'x'}, {0, 0, 0, 0}};
    *o = (struct options){.mode = "ll", .variant = "both", .convention = "barrier", .hidden = 7168, .max_tokens = 128, .warmup = 10, .iters = 50};
    opterr = 0;
    for (int which, at = optind; (which = getopt_long(argc, argv, "", known, NULL)) != -1; at = optind) {
        if (which == 'V') {
            o->validate = 1;
        } else if (which == '?') {
            snprintf(err, ERR_LEN, "unknown option or missing value: %s", argv[at]);
            return -1;
        } else if (set_option(o, which, optarg) < 0) {
            snprintf(err, ERR_LEN, "bad value for %s: %s", argv[at], optarg);
            return -1;
        }
    }
    if (optind < argc) snprintf(err, ERR_LEN, "unexpected argument: %s", argv[optind]);
    else if (!o->routing) snprintf(err, ERR_LEN, "--routing FILE is required");
    else if (o->iters < 2 && strcmp(o->convention, "barrier") == 0) snprintf(err, ERR_LEN, "--iters must be at least 2: the barrier convention drops its first sample");
    else return 0;
    return -1;
}

static int fits(const struct options *o, const struct routing *table, int ranks, char *err) {
    if (table->ranks != ranks) {
        snprintf(err, ERR_LEN, "routing file %s is for %d ranks, this job has %d", o->routing, table->ranks, ranks);
        return -1;
    }
    for (int r = 0; r < ranks; r++)
        if (table->tokens[r] > o->max_tokens) {
            snprintf(err, ERR_LEN, "rank %d has %d tokens in %s, more than --max-tokens %d", r, table->tokens[r], o->routing, o->max_tokens);
            return -1;
        }
    return 0;
}

// blocks_fit refuses routing that names one expert so often that its block of ranks * max-tokens rows overflows.
static int blocks_fit(const struct options *o, const struct routing *table, char *err) {
    int *rows = calloc((size_t)table->experts, sizeof *rows), bad = -1;
    for (int r = 0; rows && r < table->ranks; r++)
        for (size_t i = 0; i < (size_t)table->tokens[r] * table->topk; i++) {
            int e = table->idx[r][i];
            if (e >= 0 && ++rows[e] > (long)table->ranks * o->max_tokens) bad = e;
        }
    if (bad >= 0) snprintf(err, ERR_LEN, "expert %d gets %d rows, more than ranks * --max-tokens = %ld", bad, rows[bad], (long)table->ranks * o->max_tokens);
    free(rows);
    return bad >= 0 ? -1 : 0;
}

// struct series holds the samples of one operation on this rank, in microseconds.
struct series {
    const char *name, *variant;
    int samples, rows, wire_rows;
    size_t row_bytes, wire_row_bytes;
    double *us;
};

static double now_us(void) { return MPI_Wtime() * 1e6; }

// time_loop is one timer around n dispatches and one around n combines, with no barrier inside either loop.
static void time_loop(struct moe *m, enum variant v, int n, struct series *dispatch, struct series *combine) {
    MPI_Barrier(m->comm);
    double start = now_us();
    for (int i = 0; i < n; i++) moe_dispatch(m, v);
    dispatch->us[0] = (now_us() - start) / n;
    MPI_Barrier(m->comm);
    start = now_us();
    for (int i = 0; i < n; i++) moe_combine(m, v);
    combine->us[0] = (now_us() - start) / n;
    dispatch->samples = combine->samples = 1;
}

// time_barrier times each operation on its own, all ranks starting together; the first sample is dropped.
static void time_barrier(struct moe *m, enum variant v, int n, struct series *dispatch, struct series *combine) {
    for (int i = 0; i < n; i++) {
        MPI_Barrier(m->comm);
        double start = now_us();
        moe_dispatch(m, v);
        double dispatched = now_us();
        MPI_Barrier(m->comm);
        double again = now_us();
        moe_combine(m, v);
        double combined = now_us();
        if (i == 0) continue;
        dispatch->us[i - 1] = dispatched - start;
        combine->us[i - 1] = combined - again;
    }
    dispatch->samples = combine->samples = n - 1;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *sorted, int n) { return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2; }

// max_rank_median is the median over iterations of the slowest rank's time.
static double max_rank_median(const double *us, int ranks, int n) {
    double *slowest = malloc((size_t)n * sizeof *slowest);
    if (!slowest) return NAN;
    for (int i = 0; i < n; i++) {
        slowest[i] = us[i];
        for (int r = 1; r < ranks; r++) slowest[i] = fmax(slowest[i], us[(size_t)r * n + i]);
    }
    qsort(slowest, (size_t)n, sizeof *slowest, by_value);
    double value = median(slowest, n);
    free(slowest);
    return value;
}

static void print_rank(const struct series *s, int rank, double *us, const long long *bytes) {
    int n = s->samples, at99 = (int)ceil(0.99 * n) - 1;
    qsort(us, (size_t)n, sizeof *us, by_value);
    double mid = median(us, n);
    printf("%s{\"rank\":%d,\"min_us\":%.3f,\"median_us\":%.3f,\"p99_us\":%.3f,\"max_us\":%.3f,\"logical_bytes\":%lld,\"wire_bytes\":%lld,\"gb_per_s\":%.4f}", rank ? "," : "", rank, us[0], mid, us[at99], us[n - 1], bytes[0], bytes[1], mid > 0 ? (double)bytes[0] / mid / 1e3 : 0);
}

// print_series gathers one operation from all ranks and prints it on rank 0. GB/s is the mean rank's logical bytes over max_rank_median_us.
static int print_series(const struct moe *m, struct series *s, int first) {
    int n = s->samples, root = m->rank == 0;
    double *us = root ? malloc((size_t)n * m->ranks * sizeof *us) : NULL;
    long long mine[2] = {(long long)s->rows * (long long)s->row_bytes, (long long)s->wire_rows * (long long)s->wire_row_bytes}, total = 0;
    long long *bytes = root ? malloc(2 * (size_t)m->ranks * sizeof *bytes) : NULL;
    if (root && (!us || !bytes)) return -1;
    MPI_Gather(s->us, n, MPI_DOUBLE, us, n, MPI_DOUBLE, 0, m->comm);
    MPI_Gather(mine, 2, MPI_LONG_LONG, bytes, 2, MPI_LONG_LONG, 0, m->comm);
    if (!root) return 0;
    for (int r = 0; r < m->ranks; r++) total += bytes[2 * r];
    double slowest = max_rank_median(us, m->ranks, n);
    printf("%s{\"name\":\"%s\",\"variant\":\"%s\",\"samples\":%d,\"max_rank_median_us\":%.3f,\"logical_bytes\":%lld,\"gb_per_s\":%.4f,\"ranks\":[", first ? "" : ",", s->name, s->variant, n, slowest, total, slowest > 0 ? (double)total / m->ranks / slowest / 1e3 : 0);
    for (int r = 0; r < m->ranks; r++) print_rank(s, r, us + (size_t)r * n, bytes + 2 * r);
    printf("]}");
    free(us);
    free(bytes);
    return 0;
}

// struct verdict is what validation found over all ranks.
struct verdict {
    int wrong, corrupted;
    char first[ERR_LEN];
};

static void validate(struct moe *m, const struct routing *table, const struct options *o, enum variant v, struct verdict *sum) {
    char err[ERR_LEN] = "";
    int damaged = 0, all = 0, mine = check_round(m, table, v, o->corrupt, &damaged, err) ? m->rank : m->ranks, who;
    MPI_Allreduce(&damaged, &all, 1, MPI_INT, MPI_SUM, m->comm);
    MPI_Allreduce(&mine, &who, 1, MPI_INT, MPI_MIN, m->comm);
    sum->corrupted += all;
    if (who == m->ranks) return;
    MPI_Bcast(err, ERR_LEN, MPI_CHAR, who, m->comm);
    if (!sum->wrong++) memcpy(sum->first, err, ERR_LEN);
}

static void measure(struct moe *m, const struct routing *table, const struct options *o, enum variant v, struct verdict *sum, int first) {
    static const char *const name[] = {"dedup", "flat", "rank"};
    double *us = calloc(2 * (size_t)o->iters, sizeof *us);
    if (!us) MPI_Abort(m->comm, 1);
    struct series dispatch = {.name = "dispatch", .variant = name[v], .us = us}, combine = {.name = "combine", .variant = name[v], .us = us + o->iters};
    if (o->validate) validate(m, table, o, v, sum);
    moe_dispatch(m, v);
    run_experts(m, table, v);
    for (int i = 0; i < o->warmup; i++) {
        moe_dispatch(m, v);
        moe_combine(m, v);
    }
    (strcmp(o->convention, "loop") ? time_barrier : time_loop)(m, v, o->iters, &dispatch, &combine);
    dispatch.rows = m->recv_rows;
    combine.rows = m->sent_rows;
    dispatch.wire_rows = m->wire_rows[0];
    combine.wire_rows = m->wire_rows[1];
    dispatch.row_bytes = combine.row_bytes = combine.wire_row_bytes = m->row_bytes;
    dispatch.wire_row_bytes = v == DEDUP ? m->dedup_bytes : v == NORMAL ? m->row_bytes + m->meta_bytes : m->row_bytes;
    if (o->validate) validate(m, table, o, v, sum);
    if (print_series(m, &dispatch, first) || print_series(m, &combine, 0)) MPI_Abort(m->comm, 1);
    free(us);
}

static void print_head(const struct moe *m, const struct routing *table, const struct options *o, const char *transport) {
    printf("{\"schema\":\"railbond-mpi-peer/1\",\"transport\":%s,\"mode\":\"%s\",\"convention\":\"%s\",\"ranks\":%d,\"hidden\":%d,\"topk\":%d,\"experts\":%d,\"max_tokens\":%d,\"warmup\":%d,\"iters\":%d,\"tokens\":[",
           transport, o->mode, o->convention, m->ranks, m->hidden, m->topk, m->experts, m->max_tokens, o->warmup, o->iters);
    for (int r = 0; r < m->ranks; r++) printf("%s%d", r ? "," : "", table->tokens[r]);
    printf("],\"operations\":[");
}

// print_tail quotes only text this program composed, which has no quote or backslash in it.
static void print_tail(const struct options *o, const struct verdict *sum) {
    printf("],\"validated\":%s,\"valid\":%s,\"corrupted\":%d,\"difference\":\"%s\"}\n", o->validate ? "true" : "false",
           o->validate && !sum->wrong ? "true" : "false", sum->corrupted, sum->first);
    fflush(stdout);
}

static int run(const struct options *o, const struct routing *table, MPI_Comm comm) {
    struct moe m;
    struct verdict sum = {0};
    char transport[4096];
    int normal = strcmp(o->mode, "normal") == 0, bad, any;
    bad = moe_init(&m, table, comm, o->hidden, o->max_tokens, normal);
    MPI_Allreduce(&bad, &any, 1, MPI_INT, MPI_MIN, comm);
    if (any) {
        if (m.rank == 0) fprintf(stderr, "mpi-peer: not enough memory for hidden=%d max-tokens=%d: use smaller sizes\n", o->hidden, o->max_tokens);
        return 1;
    }
    fill_input(&m);
    describe_transport(comm, transport, sizeof transport);
    if (m.rank == 0) print_head(&m, table, o, transport);
    if (normal) {
        measure(&m, table, o, NORMAL, &sum, 1);
    } else {
        int flat = strcmp(o->variant, "flat") == 0;
        if (!flat) measure(&m, table, o, DEDUP, &sum, 1);
        if (strcmp(o->variant, "dedup")) measure(&m, table, o, FLAT, &sum, flat);
    }
    if (m.rank == 0) print_tail(o, &sum);
    moe_free(&m);
    return sum.wrong ? EXIT_DIFFERENT : 0;
}

int main(int argc, char **argv) {
    struct options o;
    struct routing table = {0};
    char err[ERR_LEN];
    int rank, ranks, rc = EXIT_USAGE;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (parse(argc, argv, &o, err) || routing_read(o.routing, &table, err) || fits(&o, &table, ranks, err) || blocks_fit(&o, &table, err)) {
        if (rank == 0) fprintf(stderr, "mpi-peer: %s\n", err);
    } else {
        rc = run(&o, &table, MPI_COMM_WORLD);
    }
    routing_free(&table);
    MPI_Finalize();
    return rc;
}
