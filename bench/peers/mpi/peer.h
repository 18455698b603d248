// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// MoE dispatch and combine over MPI_Alltoallv: the baseline `railbond ep bench` is measured against.
//
// R ranks, E experts, E_l = E/R experts per rank, T tokens on this rank, M the most tokens a rank may have, K lanes per
// token (top-k), H columns of bf16 per row.

#ifndef RAILBOND_PEER_H
#define RAILBOND_PEER_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

enum { ERR_LEN = 512, MAX_TOPK = 64 };

// struct routing is the whole routing table; every rank reads it from the same file.
struct routing {
    int ranks, topk, experts;
    int *tokens;    // [ranks]
    int32_t **idx;  // [ranks] of [tokens, topk]; -1 = lane not selected
    float **weight; // [ranks] of [tokens, topk]
};

// routing_read returns 0, or -1 with one sentence in err.
int routing_read(const char *path, struct routing *table, char err[ERR_LEN]);
void routing_free(struct routing *table);

enum variant { DEDUP, FLAT, NORMAL };

// struct moe is one rank's preallocated state. Dispatch fills it, combine reads it; neither allocates.
struct moe {
    MPI_Comm comm;
    int rank, ranks, topk, experts, local_experts, tokens, max_tokens, hidden;
    const int32_t *idx;  // [T,K]
    const float *weight; // [T,K]; normal combine carries it along but sums without it

    uint16_t *x;      // [T,H]
    uint16_t *recv_x; // low latency [E_l, R*M, H]; normal [N,H]
    uint16_t *y;      // shape of recv_x: what the experts made of it, combine's input
    uint16_t *out;    // [T,H]
    int *recv_count;  // [E_l]
    int recv_rows;    // rows in recv_x
    int sent_rows;    // rows combine brings back, those of this rank itself included
    int wire_rows[2]; // rows through MPI into this rank in the last dispatch [0] and combine [1]

    size_t row_bytes, head_bytes, dedup_bytes, meta_bytes;
    MPI_Datatype row_type, dedup_type, meta_type;
    char *stage_send, *stage_recv, *meta_send;
    char *recv_meta; // normal: per received row int32 local expert [K], float weight [K]

    // Counts per rank are E_l+1 ints: unique (token, rank) rows, then lanes per local expert.
    int *send_counts, *recv_counts;
    int *lane_pos;                                  // [R,E_l] cursor of the next lane in (rank, expert, token) order
    int *block_pos;                                 // [R,E_l] cursor of the next row in an expert block, by source
    int *scount, *sdispl, *rcount, *rdispl, *cursor; // [R], in rows
    int *seen;                                      // [R] last token that already has a row for the rank
    const uint16_t **lane_row;                      // [T,K] where combine finds a lane's row, NULL = none
};

int moe_init(struct moe *m, const struct routing *table, MPI_Comm comm, int hidden, int max_tokens, int normal);
void moe_free(struct moe *m);
void moe_dispatch(struct moe *m, enum variant v);
void moe_combine(struct moe *m, enum variant v);

// bf16_sum stores in out[0..n) the fp32 sum of weight[i]*row[i], rounded once to nearest even.
void bf16_sum(uint16_t *out, const uint16_t *const *row, const float *weight, int rows, size_t n);

// copy_away is memcpy for rows that are not read soon; copy_away_done orders all of them before what follows.
void copy_away(void *to, const void *from, size_t bytes);
void copy_away_done(void);

enum corrupt { CORRUPT_NONE, CORRUPT_RECV_X, CORRUPT_RECV_COUNT, CORRUPT_OUT };

void fill_input(struct moe *m);
void run_experts(struct moe *m, const struct routing *table, enum variant v);

// check_round poisons the results, runs one dispatch and one combine, and compares every element with a local
// recomputation. It returns 0, or -1 with the first difference in err. *corrupted counts the bytes it damaged on request.
int check_round(struct moe *m, const struct routing *table, enum variant v, enum corrupt c, int *corrupted, char err[ERR_LEN]);

// describe_transport writes a JSON object: which MPI, its single-copy mechanism between processes, and whether one rank may read another's memory.
void describe_transport(MPI_Comm comm, char *out, size_t size);

#endif
