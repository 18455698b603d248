// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

#include "peer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// payload is a whole number in [-64, 64): exact in bf16, and different for neighbours in every direction.
static float payload(int rank, int token, int column) {
    uint32_t h = (uint32_t)rank * 0x9e3779b1u ^ (uint32_t)token * 0x85ebca77u ^ (uint32_t)column * 0xc2b2ae3du;
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    h ^= h >> 13;
    return (float)(int)(h & 127) - 64.0f;
}

// expert_scale stands in for an expert's work: a power of two, so that no result is rounded before combine; far enough
// apart that combine must round, even where it only adds.
static float expert_scale(int expert) {
    static const float scale[] = {1.0f, 16.0f, -2.0f, 0.125f, -4.0f};
    return scale[expert % 5];
}

static uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static float from_bf16(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

void fill_input(struct moe *m) {
    for (int t = 0; t < m->tokens; t++)
        for (int c = 0; c < m->hidden; c++) m->x[(size_t)t * m->hidden + c] = to_bf16(payload(m->rank, t, c));
}

static int to_rank(const struct routing *table, int src, int t, int rank) {
    int per_rank = table->experts / table->ranks;
    for (int k = 0; k < table->topk; k++) {
        int e = table->idx[src][(size_t)t * table->topk + k];
        if (e >= 0 && e / per_rank == rank) return 1;
    }
    return 0;
}

// to_expert counts lanes: a token that names one expert twice is two rows there.
static int to_expert(const struct routing *table, int src, int t, int expert) {
    int lanes = 0;
    for (int k = 0; k < table->topk; k++) lanes += table->idx[src][(size_t)t * table->topk + k] == expert;
    return lanes;
}

// struct block is a run of received rows with one rule of membership: an expert's rows, or in normal mode a rank's.
struct block {
    uint16_t *rows, *results;
    int expert; // -1 in normal mode
    float scale;
};

static int block_count(const struct moe *m, enum variant v) { return v == NORMAL ? 1 : m->local_experts; }

static struct block block_at(struct moe *m, enum variant v, int i) {
    size_t first = v == NORMAL ? 0 : (size_t)i * m->ranks * m->max_tokens * (size_t)m->hidden;
    int expert = v == NORMAL ? -1 : m->rank * m->local_experts + i;
    return (struct block){m->recv_x + first, m->y + first, expert, expert_scale(v == NORMAL ? m->rank : expert)};
}

static int member(const struct moe *m, const struct routing *table, const struct block *b, int src, int t) {
    return b->expert < 0 ? to_rank(table, src, t, m->rank) : to_expert(table, src, t, b->expert);
}

static int block_rows(const struct moe *m, const struct routing *table, const struct block *b) {
    int rows = 0;
    for (int s = 0; s < m->ranks; s++)
        for (int t = 0; t < table->tokens[s]; t++) rows += member(m, table, b, s, t);
    return rows;
}

void run_experts(struct moe *m, const struct routing *table, enum variant v) {
    for (int i = 0; i < block_count(m, v); i++) {
        struct block b = block_at(m, v, i);
        size_t n = (size_t)block_rows(m, table, &b) * m->hidden;
        for (size_t j = 0; j < n; j++) b.results[j] = to_bf16(b.scale * from_bf16(b.rows[j]));
    }
}

// poison makes stale results impossible to mistake for new ones: every bf16 becomes a NaN.
static void poison(struct moe *m, const struct routing *table, enum variant v) {
    for (int i = 0; i < block_count(m, v); i++) {
        struct block b = block_at(m, v, i);
        size_t bytes = (size_t)block_rows(m, table, &b) * m->row_bytes;
        memset(b.rows, 0xff, bytes);
        memset(b.results, 0xff, bytes);
    }
    memset(m->out, 0xff, (size_t)m->tokens * m->row_bytes);
    memset(m->recv_count, 0xff, (size_t)m->local_experts * sizeof *m->recv_count);
    m->recv_rows = -1;
}

static int check_meta(const struct moe *m, const struct routing *table, int src, int t, int row, char *err) {
    const int32_t *local = (const int32_t *)(m->recv_meta + (size_t)row * m->meta_bytes);
    const float *weight = (const float *)(local + m->topk);
    for (int k = 0; k < m->topk; k++) {
        size_t lane = (size_t)t * m->topk + k;
        int e = table->idx[src][lane], here = e >= 0 && e / m->local_experts == m->rank;
        if (local[k] == (here ? e % m->local_experts : -1) && weight[k] == (here ? table->weight[src][lane] : 0)) continue;
        snprintf(err, ERR_LEN, "rank %d dispatch: row %d (source rank %d token %d) lane %d: local expert %d weight %g", m->rank, row, src, t, k, local[k], weight[k]);
        return -1;
    }
    return 0;
}

static int check_row(const struct moe *m, const struct block *b, int row, int src, int t, char *err) {
    const uint16_t *got = b->rows + (size_t)row * m->hidden;
    for (int c = 0; c < m->hidden; c++) {
        float want = payload(src, t, c);
        if (got[c] == to_bf16(want)) continue;
        snprintf(err, ERR_LEN, "rank %d dispatch: expert %d row %d (source rank %d token %d) column %d: expected %g, found %g", m->rank, b->expert, row, src, t, c, want, from_bf16(got[c]));
        return -1;
    }
    return 0;
}

static int check_block(struct moe *m, const struct routing *table, const struct block *b, char *err) {
    int row = 0;
    for (int s = 0; s < m->ranks; s++)
        for (int t = 0; t < table->tokens[s]; t++)
            for (int last = row + member(m, table, b, s, t); row < last; row++) {
                if (check_row(m, b, row, s, t, err)) return -1;
                if (b->expert < 0 && check_meta(m, table, s, t, row, err)) return -1;
            }
    return 0;
}

static int check_count(const struct moe *m, const char *what, int i, int got, int want, char *err) {
    if (got == want) return 0;
    snprintf(err, ERR_LEN, "rank %d dispatch: %s[%d]: expected %d, found %d", m->rank, what, i, want, got);
    return -1;
}

static int check_dispatch(struct moe *m, const struct routing *table, enum variant v, char *err) {
    int rows = 0;
    for (int e = 0; e < m->local_experts; e++) {
        struct block one = {.expert = m->rank * m->local_experts + e};
        if (check_count(m, "recv_count", e, m->recv_count[e], block_rows(m, table, &one), err)) return -1;
    }
    for (int i = 0; i < block_count(m, v); i++) {
        struct block b = block_at(m, v, i);
        rows += block_rows(m, table, &b);
        if (check_block(m, table, &b, err)) return -1;
    }
    return check_count(m, "rows", 0, m->recv_rows, rows, err);
}

// term is what lane k of token t adds to the sum of scales, or 0 when it adds nothing.
static double term(const struct moe *m, const struct routing *table, enum variant v, int t, int k) {
    const int32_t *idx = table->idx[m->rank] + (size_t)t * m->topk;
    if (idx[k] < 0) return 0;
    if (v != NORMAL) return (double)table->weight[m->rank][(size_t)t * m->topk + k] * expert_scale(idx[k]);
    for (int j = 0; j < k; j++)
        if (idx[j] >= 0 && idx[j] / m->local_experts == idx[k] / m->local_experts) return 0;
    return expert_scale(idx[k] / m->local_experts);
}

// check_combine accepts exactly the bf16 values that a correctly rounded fp32 sum can give: its error is at most
// one part in 2^23 of the sum of magnitudes per lane, and no bf16 is between the two bounds as a rule.
static int check_combine(const struct moe *m, const struct routing *table, enum variant v, char *err) {
    for (int t = 0; t < m->tokens; t++) {
        double scale = 0, magnitude = 0;
        for (int k = 0; k < m->topk; k++) {
            double s = term(m, table, v, t, k);
            scale += s;
            magnitude += fabs(s);
        }
        for (int c = 0; c < m->hidden; c++) {
            double p = payload(m->rank, t, c), want = scale * p, slack = v == NORMAL ? 0 : magnitude * fabs(p) * m->topk * 0x1p-23;
            float got = from_bf16(m->out[(size_t)t * m->hidden + c]);
            float low = from_bf16(to_bf16((float)(want - slack))), high = from_bf16(to_bf16((float)(want + slack)));
            if (got >= low && got <= high) continue;
            snprintf(err, ERR_LEN, "rank %d combine: token %d column %d: expected %g, found %g", m->rank, t, c, want, got);
            return -1;
        }
    }
    return 0;
}

// damage flips bits of one result, so that tests can see the comparison fail.
static int damage(struct moe *m, enum variant v, enum corrupt c) {
    if (c == CORRUPT_RECV_COUNT) {
        m->recv_count[0] ^= 1;
        return 1;
    }
    if (c == CORRUPT_OUT && m->tokens > 0) {
        ((uint8_t *)m->out)[(size_t)m->tokens * m->row_bytes - 1] ^= 0x40;
        return 1;
    }
    for (int i = 0; c == CORRUPT_RECV_X && i < block_count(m, v); i++) {
        if (v != NORMAL && m->recv_count[i] == 0) continue;
        if (v == NORMAL && m->recv_rows == 0) continue;
        ((uint8_t *)block_at(m, v, i).rows)[m->row_bytes - 1] ^= 0x40;
        return 1;
    }
    return 0;
}

int check_round(struct moe *m, const struct routing *table, enum variant v, enum corrupt c, int *corrupted, char err[ERR_LEN]) {
    poison(m, table, v);
    moe_dispatch(m, v);
    if (c == CORRUPT_RECV_X || c == CORRUPT_RECV_COUNT) *corrupted += damage(m, v, c);
    int rc = check_dispatch(m, table, v, err);
    run_experts(m, table, v);
    memset(m->stage_recv, 0xff, (size_t)m->sent_rows * m->row_bytes);
    moe_combine(m, v);
    if (c == CORRUPT_OUT) *corrupted += damage(m, v, c);
    // After a wrong dispatch the combine differs too; the first difference is the one worth reading.
    return rc ? rc : check_combine(m, table, v, err);
}
