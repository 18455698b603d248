// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "peer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64, HUGE_PAGE = 2 << 20 };

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// bulk reserves worst-case memory; only pages that are touched become real, in huge pages where the kernel has them.
static void *bulk(size_t bytes) {
    size_t size = round_up(bytes + 1, HUGE_PAGE);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    madvise(p, size, MADV_HUGEPAGE);
    return p;
}

static MPI_Datatype bytes_type(size_t bytes) {
    MPI_Datatype t;
    MPI_Type_contiguous((int)bytes, MPI_BYTE, &t);
    MPI_Type_commit(&t);
    return t;
}

static int alloc_bulk(struct moe *m, int normal) {
    size_t T = (size_t)m->tokens, M = (size_t)m->max_tokens, R = (size_t)m->ranks, K = (size_t)m->topk;
    size_t fan = R < K ? R : K; // most rows of one token with one row per rank
    size_t recv = R * M * (normal ? 1 : (size_t)m->local_experts) * m->row_bytes;
    // One staging pair serves both operations: flat dispatch out is combine back, and the other way round.
    size_t mine = T * (normal ? fan : K), theirs = R * M * (normal ? 1 : K);
    size_t stage = (mine > theirs ? mine : theirs) * m->dedup_bytes;
    m->x = bulk(T * m->row_bytes);
    m->out = bulk(T * m->row_bytes);
    m->recv_x = bulk(recv);
    m->y = bulk(recv);
    m->stage_send = bulk(stage);
    m->stage_recv = bulk(stage);
    m->meta_send = bulk(T * fan * m->meta_bytes);
    m->recv_meta = bulk(R * M * m->meta_bytes);
    return m->x && m->out && m->recv_x && m->y && m->stage_send && m->stage_recv && m->meta_send && m->recv_meta ? 0 : -1;
}

static int alloc_counts(struct moe *m) {
    size_t R = (size_t)m->ranks, E = (size_t)m->local_experts, lanes = (size_t)m->tokens * (size_t)m->topk;
    int *ints = calloc(2 * R * (E + 1) + 2 * R * E + 6 * R + E, sizeof *ints);
    m->lane_row = calloc(lanes + 1, sizeof *m->lane_row);
    if (!ints || !m->lane_row) return -1;
    m->send_counts = ints;
    m->recv_counts = m->send_counts + R * (E + 1);
    m->lane_pos = m->recv_counts + R * (E + 1);
    m->block_pos = m->lane_pos + R * E;
    m->scount = m->block_pos + R * E;
    m->sdispl = m->scount + R;
    m->rcount = m->sdispl + R;
    m->rdispl = m->rcount + R;
    m->cursor = m->rdispl + R;
    m->seen = m->cursor + R;
    m->recv_count = m->seen + R;
    return 0;
}

int moe_init(struct moe *m, const struct routing *table, MPI_Comm comm, int hidden, int max_tokens, int normal) {
    memset(m, 0, sizeof *m);
    m->comm = comm;
    MPI_Comm_rank(comm, &m->rank);
    m->ranks = table->ranks;
    m->topk = table->topk;
    m->experts = table->experts;
    m->local_experts = table->experts / table->ranks;
    m->tokens = table->tokens[m->rank];
    m->max_tokens = max_tokens;
    m->hidden = hidden;
    m->idx = table->idx[m->rank];
    m->weight = table->weight[m->rank];
    m->row_bytes = (size_t)hidden * sizeof *m->x;
    m->head_bytes = round_up(sizeof(int32_t) * (size_t)(1 + m->topk), LINE);
    m->dedup_bytes = round_up(m->head_bytes + m->row_bytes, LINE);
    m->meta_bytes = (sizeof(int32_t) + sizeof(float)) * (size_t)m->topk;
    m->row_type = bytes_type(m->row_bytes);
    m->dedup_type = bytes_type(m->dedup_bytes);
    m->meta_type = bytes_type(m->meta_bytes);
    return alloc_bulk(m, normal) || alloc_counts(m) ? -1 : 0;
}

// moe_free drops what MPI tracks; the process ends right after, so plain memory is left to the kernel.
void moe_free(struct moe *m) {
    MPI_Type_free(&m->row_type);
    MPI_Type_free(&m->dedup_type);
    MPI_Type_free(&m->meta_type);
}

static char *row_at(void *base, size_t row, size_t bytes) { return (char *)base + row * bytes; }
static size_t block_row(const struct moe *m, int expert, int row) { return (size_t)expert * (size_t)m->ranks * (size_t)m->max_tokens + (size_t)row; }
static int *counts_of(int *counts, const struct moe *m, int rank) { return counts + (size_t)rank * (size_t)(m->local_experts + 1); }
static void forget_seen(struct moe *m) { memset(m->seen, 0xff, (size_t)m->ranks * sizeof *m->seen); }

// exchange_counts tells every rank how many rows and lanes it will get, by expert.
static void exchange_counts(struct moe *m) {
    int E = m->local_experts;
    memset(m->send_counts, 0, (size_t)m->ranks * (size_t)(E + 1) * sizeof *m->send_counts);
    forget_seen(m);
    for (int t = 0; t < m->tokens; t++)
        for (int k = 0; k < m->topk; k++) {
            int e = m->idx[(size_t)t * m->topk + k];
            if (e < 0) continue;
            int *count = counts_of(m->send_counts, m, e / E);
            count[1 + e % E]++;
            count[0] += m->seen[e / E] != t;
            m->seen[e / E] = t;
        }
    MPI_Alltoall(m->send_counts, E + 1, MPI_INT, m->recv_counts, E + 1, MPI_INT, m->comm);
}

// lay_out turns counts into positions: of rows in expert blocks, and of lanes in (rank, expert, token) order.
static void lay_out(struct moe *m) {
    int E = m->local_experts;
    memset(m->recv_count, 0, (size_t)E * sizeof *m->recv_count);
    for (int r = 0; r < m->ranks; r++) {
        const int *in = counts_of(m->recv_counts, m, r), *to = counts_of(m->send_counts, m, r);
        for (int e = 0, pos = 0; e < E; pos += to[1 + e], e++) {
            m->lane_pos[(size_t)r * E + e] = pos;
            m->block_pos[(size_t)r * E + e] = m->recv_count[e];
            m->recv_count[e] += in[1 + e];
        }
    }
}

// rows_of counts what a rank pair moves: unique rows, or all lanes.
static int rows_of(const struct moe *m, const int *count, int per_lane) {
    if (!per_lane) return count[0];
    int rows = 0;
    for (int e = 0; e < m->local_experts; e++) rows += count[1 + e];
    return rows;
}

// plan sets counts and displacements in rows. Rows for this rank itself never enter MPI: they are copied straight to their place.
static int plan(struct moe *m, int per_lane) {
    int sent = 0, received = 0;
    for (int r = 0; r < m->ranks; r++) {
        int self = r == m->rank;
        m->scount[r] = self ? 0 : rows_of(m, counts_of(m->send_counts, m, r), per_lane);
        m->rcount[r] = self ? 0 : rows_of(m, counts_of(m->recv_counts, m, r), per_lane);
        m->sdispl[r] = sent;
        m->rdispl[r] = received;
        sent += m->scount[r];
        received += m->rcount[r];
    }
    return received;
}

static void exchange(struct moe *m, const void *from, void *to, MPI_Datatype type) {
    MPI_Alltoallv(from, m->scount, m->sdispl, type, to, m->rcount, m->rdispl, type, m->comm);
}

// exchange_back is exchange with the two sides swapped.
static void exchange_back(struct moe *m, const void *from, void *to) {
    MPI_Alltoallv(from, m->rcount, m->rdispl, m->row_type, to, m->scount, m->sdispl, m->row_type, m->comm);
}

// place_lanes finds where combine will read each lane's row: in y for this rank's own experts, else in the
// receive stage in (rank, expert, token) order. It must see block_pos as lay_out left it. It copies own rows into their blocks.
static void place_lanes(struct moe *m) {
    int E = m->local_experts;
    for (int t = 0; t < m->tokens; t++)
        for (int k = 0; k < m->topk; k++) {
            size_t lane = (size_t)t * m->topk + k;
            int e = m->idx[lane];
            m->lane_row[lane] = NULL;
            if (e < 0) continue;
            int r = e / E, local = e % E;
            if (r == m->rank) {
                size_t row = block_row(m, local, m->block_pos[(size_t)r * E + local]++);
                copy_away(row_at(m->recv_x, row, m->row_bytes), row_at(m->x, t, m->row_bytes), m->row_bytes);
                m->lane_row[lane] = (uint16_t *)row_at(m->y, row, m->row_bytes);
            } else {
                size_t row = (size_t)m->sdispl[r] + m->lane_pos[(size_t)r * E + local]++;
                m->lane_row[lane] = (uint16_t *)row_at(m->stage_recv, row, m->row_bytes);
            }
        }
}

// pack_dedup writes one row per (token, other rank): a head with the lanes' local experts, then the payload.
static void pack_dedup(struct moe *m) {
    int E = m->local_experts;
    memcpy(m->cursor, m->sdispl, (size_t)m->ranks * sizeof *m->cursor);
    forget_seen(m);
    for (int t = 0; t < m->tokens; t++)
        for (int k = 0; k < m->topk; k++) {
            int e = m->idx[(size_t)t * m->topk + k];
            if (e < 0 || e / E == m->rank) continue;
            int r = e / E;
            if (m->seen[r] != t) {
                m->seen[r] = t;
                char *row = row_at(m->stage_send, m->cursor[r]++, m->dedup_bytes);
                *(int32_t *)row = 0;
                memcpy(row + m->head_bytes, row_at(m->x, t, m->row_bytes), m->row_bytes);
            }
            int32_t *head = (int32_t *)row_at(m->stage_send, m->cursor[r] - 1, m->dedup_bytes);
            head[1 + head[0]++] = e % E;
        }
}

static void unpack_dedup(struct moe *m) {
    for (int r = 0; r < m->ranks; r++)
        for (int i = 0; i < m->rcount[r]; i++) {
            const char *row = row_at(m->stage_recv, (size_t)m->rdispl[r] + i, m->dedup_bytes);
            const int32_t *head = (const int32_t *)row;
            for (int j = 0; j < head[0]; j++) {
                int *pos = &m->block_pos[(size_t)r * m->local_experts + head[1 + j]];
                copy_away(row_at(m->recv_x, block_row(m, head[1 + j], (*pos)++), m->row_bytes), row + m->head_bytes, m->row_bytes);
            }
        }
}

// pack_flat writes one row per lane for another rank, in the order combine will bring them back.
static void pack_flat(struct moe *m) {
    for (int t = 0; t < m->tokens; t++)
        for (int k = 0; k < m->topk; k++) {
            size_t lane = (size_t)t * m->topk + k;
            int e = m->idx[lane];
            if (e < 0 || e / m->local_experts == m->rank) continue;
            size_t at = (size_t)((const char *)m->lane_row[lane] - m->stage_recv);
            memcpy(m->stage_send + at, row_at(m->x, t, m->row_bytes), m->row_bytes);
        }
}

// move_blocks copies between the expert blocks and a stage ordered by (source rank, expert, token): whole runs, no row loop.
static void move_blocks(struct moe *m, char *stage, uint16_t *blocks, int to_stage) {
    memset(m->cursor, 0, (size_t)m->ranks * sizeof *m->cursor);
    for (int e = 0; e < m->local_experts; e++)
        for (int r = 0, first = 0; r < m->ranks; r++) {
            int n = counts_of(m->recv_counts, m, r)[1 + e];
            char *block = row_at(blocks, block_row(m, e, first), m->row_bytes);
            first += n;
            if (r == m->rank) continue;
            char *staged = row_at(stage, (size_t)m->rdispl[r] + m->cursor[r], m->row_bytes);
            m->cursor[r] += n;
            if (to_stage)
                memcpy(staged, block, (size_t)n * m->row_bytes);
            else
                copy_away(block, staged, (size_t)n * m->row_bytes);
        }
}

static void dispatch_low_latency(struct moe *m, enum variant v) {
    exchange_counts(m);
    lay_out(m);
    m->wire_rows[0] = plan(m, 1);
    place_lanes(m);
    if (v == FLAT) {
        pack_flat(m);
        exchange(m, m->stage_send, m->stage_recv, m->row_type);
        move_blocks(m, m->stage_recv, m->recv_x, 0);
        return;
    }
    m->wire_rows[0] = plan(m, 0);
    pack_dedup(m);
    exchange(m, m->stage_send, m->stage_recv, m->dedup_type);
    unpack_dedup(m);
}

static void reduce(struct moe *m, int weighted) {
    const uint16_t *row[MAX_TOPK];
    float weight[MAX_TOPK];
    for (int t = 0; t < m->tokens; t++) {
        int n = 0;
        for (int k = 0; k < m->topk; k++) {
            size_t lane = (size_t)t * m->topk + k;
            if (!m->lane_row[lane]) continue;
            row[n] = m->lane_row[lane];
            weight[n++] = weighted ? m->weight[lane] : 1.0f;
        }
        bf16_sum(m->out + (size_t)t * m->hidden, row, weight, n, (size_t)m->hidden);
    }
}

static int sum(const int *v, int n) {
    int s = 0;
    for (int i = 0; i < n; i++) s += v[i];
    return s;
}

static void combine_low_latency(struct moe *m) {
    plan(m, 1);
    move_blocks(m, m->stage_send, m->y, 1);
    exchange_back(m, m->stage_send, m->stage_recv);
    reduce(m, 1);
}

static void write_meta(const struct moe *m, char *meta, int t, int r) {
    int32_t *local = (int32_t *)meta;
    float *weight = (float *)(local + m->topk);
    for (int k = 0; k < m->topk; k++) {
        int e = m->idx[(size_t)t * m->topk + k];
        int here = e >= 0 && e / m->local_experts == r;
        local[k] = here ? e % m->local_experts : -1;
        weight[k] = here ? m->weight[(size_t)t * m->topk + k] : 0;
    }
}

// plan_normal leaves room in recv_x for this rank's own rows, so that everything else is received in place.
static void plan_normal(struct moe *m) {
    m->wire_rows[0] = plan(m, 0);
    int own = counts_of(m->recv_counts, m, m->rank)[0];
    for (int r = m->rank + 1; r < m->ranks; r++) m->rdispl[r] += own;
    memcpy(m->cursor, m->sdispl, (size_t)m->ranks * sizeof *m->cursor);
    m->cursor[m->rank] = m->rdispl[m->rank];
}

static void pack_normal(struct moe *m) {
    forget_seen(m);
    for (int t = 0; t < m->tokens; t++)
        for (int k = 0; k < m->topk; k++) {
            size_t lane = (size_t)t * m->topk + k;
            int e = m->idx[lane], r = e < 0 ? 0 : e / m->local_experts;
            m->lane_row[lane] = NULL;
            if (e < 0 || m->seen[r] == t) continue;
            m->seen[r] = t;
            int own = r == m->rank;
            size_t at = (size_t)m->cursor[r]++;
            memcpy(row_at(own ? (char *)m->recv_x : m->stage_send, at, m->row_bytes), row_at(m->x, t, m->row_bytes), m->row_bytes);
            write_meta(m, row_at(own ? m->recv_meta : m->meta_send, at, m->meta_bytes), t, r);
            m->lane_row[lane] = (uint16_t *)row_at(own ? (char *)m->y : m->stage_recv, at, m->row_bytes);
        }
}

static void dispatch_normal(struct moe *m) {
    exchange_counts(m);
    lay_out(m);
    plan_normal(m);
    pack_normal(m);
    exchange(m, m->meta_send, m->recv_meta, m->meta_type);
    exchange(m, m->stage_send, m->recv_x, m->row_type);
}

void moe_dispatch(struct moe *m, enum variant v) {
    if (v == NORMAL)
        dispatch_normal(m);
    else
        dispatch_low_latency(m, v);
    copy_away_done();
    m->recv_rows = m->sent_rows = 0;
    for (int r = 0; r < m->ranks; r++) {
        m->recv_rows += rows_of(m, counts_of(m->recv_counts, m, r), v != NORMAL);
        m->sent_rows += rows_of(m, counts_of(m->send_counts, m, r), v != NORMAL);
    }
}

void moe_combine(struct moe *m, enum variant v) {
    if (v == NORMAL) {
        exchange_back(m, m->y, m->stage_recv);
        reduce(m, 0);
    } else {
        combine_low_latency(m);
    }
    m->wire_rows[1] = sum(m->scount, m->ranks);
}
