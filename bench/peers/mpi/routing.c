// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

#include "peer.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 4096, MAX_EXPERTS = 65536, MAX_TOKENS = 1 << 22 };

struct reader {
    const char *path;
    int line;
    char *err;
    int *room; // [ranks] tokens allocated
};

static int fail(const struct reader *r, const char *what, const char *where) {
    int len = (int)strcspn(where, "\n");
    snprintf(r->err, ERR_LEN, "routing file %s line %d: %s at \"%.*s\"", r->path, r->line, what, len > 40 ? 40 : len, where);
    return -1;
}

static const char *skip_space(const char *p) {
    while (isspace((unsigned char)*p)) p++;
    return p;
}

// take_int reads a decimal in [low, high] that ends at space or the end of the line.
static int take_int(const char **p, long low, long high, int *value) {
    char *end;
    errno = 0;
    long v = strtol(*p, &end, 10);
    if (end == *p || errno != 0 || v < low || v > high || (*end && !isspace((unsigned char)*end))) return -1;
    *value = (int)v;
    *p = skip_space(end);
    return 0;
}

static int read_header(struct reader *r, const char *p, struct routing *t) {
    const char *const name[] = {"ranks=", "topk=", "experts="};
    const long high[] = {MAX_RANKS, MAX_TOPK, MAX_EXPERTS};
    int *const value[] = {&t->ranks, &t->topk, &t->experts};
    int version;
    if (strncmp(p, "railbond-routing ", 17) != 0) return fail(r, "the first line must be 'railbond-routing 1 ranks=R topk=K experts=E'", p);
    p = skip_space(p + 17);
    const char *at = p;
    if (take_int(&p, 1, 1, &version)) return fail(r, "only version 1 is known", at);
    while (*p) {
        int key = 0;
        while (key < 3 && strncmp(p, name[key], strlen(name[key])) != 0) key++;
        at = p;
        if (key == 3 || *value[key]) return fail(r, "unknown or repeated field", at);
        p += strlen(name[key]);
        if (take_int(&p, 1, high[key], value[key])) return fail(r, "not a positive number within bounds", at);
    }
    if (!t->ranks || !t->topk || !t->experts) return fail(r, "ranks, topk and experts must all be given", "");
    if (t->experts % t->ranks) return fail(r, "experts must be a multiple of ranks", "");
    t->tokens = calloc((size_t)t->ranks, sizeof *t->tokens);
    t->idx = calloc((size_t)t->ranks, sizeof *t->idx);
    t->weight = calloc((size_t)t->ranks, sizeof *t->weight);
    r->room = calloc((size_t)t->ranks, sizeof *r->room);
    return t->tokens && t->idx && t->weight && r->room ? 0 : fail(r, "out of memory", "");
}

static int grow(struct reader *r, struct routing *t, int rank) {
    if (t->tokens[rank] < r->room[rank]) return 0;
    int room = r->room[rank] ? 2 * r->room[rank] : 64;
    if (room > MAX_TOKENS) return -1;
    size_t lanes = (size_t)room * (size_t)t->topk;
    void *idx = realloc(t->idx[rank], lanes * sizeof(int32_t));
    if (idx) t->idx[rank] = idx;
    void *weight = realloc(t->weight[rank], lanes * sizeof(float));
    if (weight) t->weight[rank] = weight;
    r->room[rank] = room;
    return idx && weight ? 0 : -1;
}

static int read_weights(struct reader *r, const char **p, int topk, float *weight) {
    for (int k = 0; k < topk; k++) {
        char *end;
        weight[k] = strtof(*p, &end);
        if (end == *p || !isfinite(weight[k])) return fail(r, "expected one finite weight per lane", *p);
        *p = skip_space(end);
    }
    return 0;
}

static int read_token(struct reader *r, const char *p, struct routing *t) {
    int rank;
    const char *at = p;
    if (take_int(&p, 0, t->ranks - 1, &rank)) return fail(r, "expected a rank below ranks", at);
    if (grow(r, t, rank)) return fail(r, "too many tokens or out of memory", at);
    size_t first = (size_t)t->tokens[rank] * (size_t)t->topk;
    int32_t *idx = t->idx[rank] + first;
    float *weight = t->weight[rank] + first;
    for (int k = 0; k < t->topk; k++) {
        at = p;
        if (take_int(&p, -1, t->experts - 1, &idx[k])) return fail(r, "expected one expert per lane, -1 or below experts", at);
        weight[k] = 1.0f / (float)t->topk;
    }
    if (*p == '|') {
        p = skip_space(p + 1);
        if (read_weights(r, &p, t->topk, weight)) return -1;
    }
    if (*p) return fail(r, "text after the last lane", p);
    t->tokens[rank]++;
    return 0;
}

static int read_lines(FILE *f, struct reader *r, struct routing *t) {
    char *line = NULL;
    size_t size = 0;
    int rc = 0;
    while (rc == 0 && getline(&line, &size, f) >= 0) {
        r->line++;
        line[strcspn(line, "#")] = 0;
        const char *p = skip_space(line);
        if (!*p) continue;
        rc = t->ranks ? read_token(r, p, t) : read_header(r, p, t);
    }
    free(line);
    if (rc == 0 && ferror(f)) rc = fail(r, strerror(errno), "");
    if (rc == 0 && !t->ranks) rc = fail(r, "no header line", "");
    return rc;
}

int routing_read(const char *path, struct routing *table, char err[ERR_LEN]) {
    struct reader r = {.path = path, .err = err};
    memset(table, 0, sizeof *table);
    FILE *f = fopen(path, "r");
    if (!f) {
        snprintf(err, ERR_LEN, "routing file %s: %s", path, strerror(errno));
        return -1;
    }
    int rc = read_lines(f, &r, table);
    fclose(f);
    free(r.room);
    return rc;
}

void routing_free(struct routing *t) {
    for (int i = 0; i < t->ranks && t->idx && t->weight; i++) {
        free(t->idx[i]);
        free(t->weight[i]);
    }
    free(t->idx);
    free(t->weight);
    free(t->tokens);
}
