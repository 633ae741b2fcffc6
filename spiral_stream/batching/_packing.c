/* Which row each sample joins: the loops of packing that cannot be array code, as every choice depends on the last.
 *
 * first_fit: a tree of maxima over the rows finds the leftmost row with room, of one column in log2(samples) steps.
 * best_fit: stacks of rows by free places, and a bitmap of the stacks that are not empty in four levels of 64 bits:
 * the tightest row is found in at most 2 * LEVELS - 1 words, however wide the row is. Of several columns all rows are
 * looked at.
 * lay: samples end to end, cut at every row's end.
 * run_ends: the longest runs of samples that keep to the limits of a batch.
 * least_ends: the runs that cost least: rows times width, and a price per run.
 *
 * All arrays are int64; those of several columns lie column behind column. Rows are numbered in the order in which they are opened.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define FAST __attribute__((target_clones("avx2", "default"))) /* the loader chooses */
#else
#define FAST
#endif

enum { LEVELS = 4, ARRAYS = 6, COLUMNS = 16 };
#define LARGEST ((1 << 24) - 1)     /* 64 ** LEVELS - 1: the widest row */
#define LONGEST ((int64_t)1 << 40) /* with MOST of them, sums stay below 2 ** 63 */
#define MOST ((int64_t)1 << 22)

/* ---- first fit ---------------------------------------------------------------------- */

/* Whether each column has as many places as are wanted. */
static inline int fits(const int32_t *free_of, const int32_t *wanted, int columns) {
  for (int c = 0; c < columns; c++)
    if (free_of[c] < wanted[c]) return 0;
  return 1;
}

/* What one sample wants of each column. */
static inline void want(const int64_t *lengths, int64_t count, int columns, int64_t i, int32_t *wanted) {
  for (int c = 0; c < columns; c++) wanted[c] = (int32_t)lengths[c * count + i];
}

/* Rows opened, or -1 without memory. A row that may not take another sample counts as having -1 places. Of one column the
 * child that is gone down to has room. Of several the maxima of a node may be of different rows, and the search goes on with
 * the next subtree to the right: more steps, as many as there are rows at worst. */
static inline __attribute__((always_inline)) int64_t fit_first(const int64_t *lengths, int64_t count, int columns,
                                                               const int32_t *widths, int64_t segments, int64_t *rows,
                                                               int64_t *starts) {
  int64_t leaves = 1, opened = 0;
  while (leaves < count) leaves *= 2;
  int32_t *free_of = malloc(2 * (size_t)leaves * (size_t)columns * sizeof *free_of);
  int64_t *taken = calloc((size_t)leaves, sizeof *taken);
  if (!free_of || !taken) opened = -1;
  if (opened == 0) {
    for (int64_t node = 1; node < 2 * leaves; node++) /* rows not opened yet have all places */
      for (int c = 0; c < columns; c++) free_of[node * columns + c] = widths[c];
    for (int64_t i = 0; i < count; i++) {
      int32_t wanted[COLUMNS];
      want(lengths, count, columns, i, wanted);
      int64_t node = 1;
      while (node < leaves) {
        node = 2 * node + !fits(free_of + 2 * node * columns, wanted, columns);
        if (columns > 1) {
          while (!fits(free_of + node * columns, wanted, columns)) {
            while (node & 1) node /= 2;
            node++;
          }
        }
      }
      const int64_t row = node - leaves;
      if (row >= opened) opened = row + 1;
      rows[i] = row;
      const int closed = ++taken[row] == segments;
      for (int c = 0; c < columns; c++) {
        int32_t *own = free_of + node * columns + c;
        starts[c * count + i] = widths[c] - *own;
        *own = closed ? -1 : *own - wanted[c];
      }
      while (node > 1) {
        int same = 1;
        for (int c = 0; c < columns; c++) {
          const int32_t left = free_of[(node & ~(int64_t)1) * columns + c], right = free_of[(node | 1) * columns + c];
          const int32_t most = left > right ? left : right;
          same &= free_of[node / 2 * columns + c] == most;
          free_of[node / 2 * columns + c] = most;
        }
        node /= 2;
        if (same) break;
      }
    }
  }
  free(free_of);
  free(taken);
  return opened;
}

static int64_t first_fit(const int64_t *lengths, int64_t count, int columns, const int32_t *widths, int64_t segments,
                         int64_t *rows, int64_t *starts) {
  if (columns == 1) return fit_first(lengths, count, 1, widths, segments, rows, starts); /* compiled for one column */
  if (columns == 2) return fit_first(lengths, count, 2, widths, segments, rows, starts);
  return fit_first(lengths, count, columns, widths, segments, rows, starts);
}

/* ---- best fit ----------------------------------------------------------------------- */

typedef struct {
  uint64_t *level[LEVELS];
  uint64_t *words;
} Bitmap;

static int make_bitmap(Bitmap *map, int64_t bits) {
  int64_t sizes[LEVELS], total = 0;
  for (int k = 0; k < LEVELS; k++) total += sizes[k] = bits = (bits + 63) / 64;
  map->words = calloc((size_t)total, sizeof *map->words);
  if (!map->words) return 0;
  map->level[0] = map->words;
  for (int k = 1; k < LEVELS; k++) map->level[k] = map->level[k - 1] + sizes[k - 1];
  return 1;
}

static void set_bit(Bitmap *map, int64_t bit) {
  for (int k = 0; k < LEVELS; k++, bit >>= 6) map->level[k][bit >> 6] |= (uint64_t)1 << (bit & 63);
}

static void clear_bit(Bitmap *map, int64_t bit) {
  for (int k = 0; k < LEVELS; k++, bit >>= 6)
    if (map->level[k][bit >> 6] &= ~((uint64_t)1 << (bit & 63))) return;
}

/* The first bit set at or after this one, which is below `bits`; -1 if there is none, or it may be one from `bits` on. */
static int64_t next_bit(const Bitmap *map, int64_t bit, int64_t bits) {
  for (int k = 0; k < LEVELS && bit < bits; k++) {
    const uint64_t word = map->level[k][bit >> 6] >> (bit & 63);
    if (word) {
      bit += __builtin_ctzll(word);
      while (k--) bit = bit << 6 | __builtin_ctzll(map->level[k][bit]);
      return bit;
    }
    bit = (bit >> 6) + 1;
    bits = (bits + 63) >> 6;
  }
  return -1;
}

/* Rows opened, or -1 without memory. Of rows that are equally full, the one that took a sample last is taken. */
static int64_t best_fit(const int64_t *lengths, int64_t count, int32_t width, int64_t segments, int64_t *rows, int64_t *starts) {
  const int64_t bits = (int64_t)width + 1;
  Bitmap map;
  int64_t opened = make_bitmap(&map, bits) ? 0 : -1;
  int64_t *top = calloc((size_t)bits, sizeof *top); /* 1 + the row on top of each stack; pages not touched cost nothing */
  int64_t *below = malloc((size_t)(count + 1) * sizeof *below);
  int64_t *taken = calloc((size_t)(count + 1), sizeof *taken);
  if (!top || !below || !taken) opened = -1;
  for (int64_t i = 0; i < count && opened >= 0; i++) {
    int64_t space = next_bit(&map, lengths[i], bits), row;
    if (space < 0) {
      space = width;
      row = opened++;
    } else {
      row = top[space] - 1;
      if (!(top[space] = below[row])) clear_bit(&map, space);
    }
    rows[i] = row;
    starts[i] = width - space;
    if (++taken[row] == segments) continue;
    space -= lengths[i];
    if (!(below[row] = top[space])) set_bit(&map, space);
    top[space] = row + 1;
  }
  free(map.words);
  free(top);
  free(below);
  free(taken);
  return opened;
}

/* ---- best fit of several columns ----------------------------------------------------- */

/* The fullest row with room has no single number of places, so no stack can be named: all open rows are looked at, CHUNK at
 * a time in loops that the compiler turns into vector code. A row is as full as its fullest column: what counts is the least
 * free share of a width. Of rows that are equally full, the one that took a sample last is taken, as of one column. */

enum { CHUNK = 256 };
#define SHARE ((int64_t)1 << 30) /* of a whole width */

typedef struct {
  int32_t *free_of[COLUMNS], *share, *turn; /* [R] each; free: -1 where a row may not take another sample */
  int columns;
} Open;

/* Which rows of a chunk have room: 1 or 0. */
static inline void mark(const Open *open, const int32_t *wanted, int64_t first, int64_t count, int32_t *good) {
  for (int64_t at = 0; at < count; at++) good[at] = open->free_of[0][first + at] >= wanted[0];
  for (int c = 1; c < open->columns; c++)
    for (int64_t at = 0; at < count; at++) good[at] &= open->free_of[c][first + at] >= wanted[c];
}

/* The least free share of the rows of a chunk that have room; INT32_MAX if none has. */
FAST static int32_t least_share(const Open *open, const int32_t *wanted, int64_t first, int64_t count) {
  int32_t good[CHUNK], least = INT32_MAX;
  mark(open, wanted, first, count, good);
  const int32_t *share = open->share + first;
  for (int64_t at = 0; at < count; at++) {
    const int32_t found = good[at] ? share[at] : INT32_MAX;
    least = found < least ? found : least;
  }
  return least;
}

/* When a row of a chunk with room and this share took a sample last; -1 if there is none. */
FAST static int32_t last_turn(const Open *open, const int32_t *wanted, int64_t first, int64_t count, int32_t least) {
  int32_t good[CHUNK], last = -1;
  mark(open, wanted, first, count, good);
  const int32_t *share = open->share + first, *turn = open->turn + first;
  for (int64_t at = 0; at < count; at++) {
    const int32_t found = good[at] & (share[at] == least) ? turn[at] : -1;
    last = found > last ? found : last;
  }
  return last;
}

static int64_t chunk_size(int64_t first, int64_t opened) { return first + CHUNK < opened ? CHUNK : opened - first; }

/* The fullest row with room, or -1. `shares` has room for one number per chunk. */
static int64_t fullest(const Open *open, const int32_t *wanted, int64_t opened, int32_t *shares) {
  int32_t least = INT32_MAX, last = -1;
  int64_t row = -1;
  for (int64_t first = 0; first < opened; first += CHUNK) {
    const int32_t share = shares[first / CHUNK] = least_share(open, wanted, first, chunk_size(first, opened));
    least = share < least ? share : least;
  }
  if (least == INT32_MAX) return -1;
  for (int64_t first = 0; first < opened; first += CHUNK) {
    if (shares[first / CHUNK] != least) continue;
    const int32_t turn = last_turn(open, wanted, first, chunk_size(first, opened), least);
    if (turn > last) {
      last = turn;
      row = first;
    }
  }
  while (open->turn[row] != last) row++;
  return row;
}

/* As `best_fit`. */
static int64_t best_fit_of_several(const int64_t *lengths, int64_t count, int columns, const int32_t *widths,
                                   int64_t segments, int64_t *rows, int64_t *starts) {
  const int64_t stride = count + 1;
  int32_t *numbers = malloc((size_t)stride * (size_t)(columns + 3) * sizeof *numbers);
  int64_t *taken = calloc((size_t)stride, sizeof *taken), opened = numbers && taken ? 0 : -1;
  Open open = {.columns = columns};
  if (opened == 0) {
    open.share = numbers + columns * stride;
    open.turn = open.share + stride;
    for (int c = 0; c < columns; c++) open.free_of[c] = numbers + c * stride;
  }
  for (int64_t i = 0; i < count && opened >= 0; i++) {
    int32_t wanted[COLUMNS];
    want(lengths, count, columns, i, wanted);
    int64_t row = fullest(&open, wanted, opened, open.turn + stride);
    if (row < 0) {
      row = opened++;
      for (int c = 0; c < columns; c++) open.free_of[c][row] = widths[c];
    }
    rows[i] = row;
    const int closed = ++taken[row] == segments;
    int64_t least = SHARE;
    for (int c = 0; c < columns; c++) {
      int32_t *own = open.free_of[c] + row;
      starts[c * count + i] = widths[c] - *own;
      *own -= wanted[c];
      const int64_t share = *own * SHARE / widths[c];
      least = share < least ? share : least;
      if (closed) *own = -1;
    }
    open.share[row] = (int32_t)least;
    open.turn[row] = (int32_t)i;
  }
  free(numbers);
  free(taken);
  return opened;
}

/* ---- end to end --------------------------------------------------------------------- */

/* Pieces written. `out`: sample, row, start, offset, length of each; there is room for every sample and every full row. */
static int64_t lay(const int64_t *lengths, int64_t count, int64_t width, int64_t segments, int64_t **out) {
  int64_t piece = 0, row = -1, start = width, taken = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t offset = 0, left = lengths[i];
    do {
      if (row < 0 || taken == segments || (left && start == width)) {
        row++;
        start = taken = 0;
      }
      const int64_t length = left < width - start ? left : width - start;
      out[0][piece] = i;
      out[1][piece] = row;
      out[2][piece] = start;
      out[3][piece] = offset;
      out[4][piece++] = length;
      start += length;
      offset += length;
      left -= length;
      taken++;
    } while (left);
  }
  return piece;
}

/* ---- runs --------------------------------------------------------------------------- */

typedef struct {
  int64_t batch_size, multiple, max_tokens, padded; /* no limit: -1 */
  int64_t count, additive;
  const int64_t *lengths, *costs, *limits; /* [S], [A, S], [A] */
} Limits;

/* The end of the longest run from `start`; at least one sample. Sums wrap around, as NumPy's do. */
static int64_t run_end(const Limits *l, int64_t start, uint64_t *sums) {
  int64_t longest = 0, end = start;
  uint64_t tokens = 0;
  memset(sums, 0, (size_t)l->additive * sizeof *sums);
  for (; end < l->count; end++) {
    const int64_t samples = end - start + 1, length = l->lengths[end];
    longest = end == start || length > longest ? length : longest;
    tokens += (uint64_t)length;
    const int64_t blocks = (longest + l->multiple - 1) / l->multiple;
    const uint64_t width = (uint64_t)(blocks < 1 ? 1 : blocks) * (uint64_t)l->multiple;
    int good = l->batch_size < 0 || samples <= l->batch_size;
    if (l->max_tokens >= 0) good &= (int64_t)(l->padded ? (uint64_t)samples * width : tokens) <= l->max_tokens;
    for (int64_t a = 0; a < l->additive; a++) {
      sums[a] += (uint64_t)l->costs[a * l->count + end];
      good &= (int64_t)sums[a] <= l->limits[a];
    }
    if (!good) break;
  }
  return end > start ? end : start + 1;
}

/* ---- runs that cost least ------------------------------------------------------------ */

/* cost[e] is the least cost of the first e samples: of all begins b that keep to the limits, the least of
 * cost[b] + (e - b) * widest(b, e) + price. Begins lie in groups of one `widest`, from wide to narrow. A wider sample
 * melts the groups below it into one.
 *
 * Of two begins a < b, b is never worse again once cost[b] - cost[a] <= (b - a) * widest(a): the width only grows, and a
 * is the first that breaks a limit. So a group drops a, and its first begin is its best. Pairs of neighbours lie in
 * buckets by the width at which the first of them is dropped. Those of wider groups wait for more than their own width, so
 * a sample finds in the buckets up to its width what it drops, and nothing else. Some 50 ns per sample. */

#define WIDEST ((int64_t)1 << 40) /* in costs; with MOST samples and PRICIEST, costs stay below 2 ** 63 */
#define PRICIEST ((int64_t)1 << 39)

enum { NONE = -1, DROPPED = -2 };

typedef struct { int64_t width; int32_t first, second, below; } Pair; /* begins; the next pair in the bucket */
typedef struct { int64_t width; int32_t first, last; } Group;

typedef struct {
  int64_t *cost;               /* [S + 1] */
  int32_t *from, *next, *prev; /* [S + 1] begin of the last run; neighbours in the group */
  Pair *pairs;                 /* one per neighbour that a begin ever had: at most 2 S */
  Group *groups;               /* [S + 1] */
  int32_t *buckets;            /* [BUCKETS S] 1 + the pair on top; 0: none */
  Bitmap full;                 /* buckets that are not empty */
  int64_t widest;
  int32_t made, shift; /* a bucket has 2 ** shift widths */
} Begins;

enum { BUCKETS = 4 }; /* per sample: commonly one width each */

static int64_t costed(int64_t width) { return width < WIDEST ? width : WIDEST; }

static void put(Begins *b, int32_t pair) {
  const int64_t bucket = b->pairs[pair].width >> b->shift;
  b->pairs[pair].below = b->buckets[bucket] - 1;
  if (b->pairs[pair].below < 0) set_bit(&b->full, bucket);
  b->buckets[bucket] = pair + 1;
}

/* Make two begins neighbours. */
static void join(Begins *b, int32_t first, int32_t second) {
  const int64_t more = b->cost[second] - b->cost[first], samples = second - first; /* costs never fall */
  const int64_t width = (more + samples - 1) / samples;
  b->next[first] = second;
  b->prev[second] = first;
  if (width > b->widest) return;
  b->pairs[b->made] = (Pair){width, first, second, NONE};
  put(b, b->made++);
}

/* Drop the last begins of a group that a later begin replaces at this width; whether one is left. */
static int drop_last(Begins *b, Group *group, int32_t later, int64_t width) {
  int32_t begin = group->last;
  while (begin >= 0 && b->cost[later] - b->cost[begin] <= (later - begin) * costed(width)) {
    const int32_t before = b->prev[begin];
    b->next[begin] = DROPPED;
    begin = before;
  }
  group->last = begin;
  if (begin >= 0) b->next[begin] = NONE;
  return begin >= 0;
}

/* Put the begins of a group, which is as narrow as this one or narrower, before its own. */
static void take_in(Begins *b, Group *group, Group *other) {
  if (!drop_last(b, other, group->first, group->width)) return;
  join(b, other->last, group->first);
  group->first = other->first;
}

/* Drop the begins of the last group that its next one replaces from now on. */
static void drop_worse(Begins *b, Group *group) {
  const int64_t width = costed(group->width), last = width >> b->shift;
  int64_t bucket;
  while ((bucket = next_bit(&b->full, 0, last + 1)) >= 0 && bucket <= last) {
    int32_t pair = b->buckets[bucket] - 1, waits = NONE, dropped = 0;
    b->buckets[bucket] = 0;
    clear_bit(&b->full, bucket);
    while (pair >= 0) {
      const Pair found = b->pairs[pair];
      if (b->next[found.first] == found.second) { /* still neighbours */
        if (found.width > width) {                /* of the last bucket alone */
          b->pairs[pair].below = waits;
          waits = pair;
        } else {
          const int32_t before = b->prev[found.first];
          b->next[found.first] = DROPPED;
          b->prev[found.second] = before;
          if (before < 0)
            group->first = found.second;
          else
            join(b, before, found.second);
          dropped = 1;
        }
      }
      pair = found.below;
    }
    while (waits >= 0) {
      const int32_t after = b->pairs[waits].below;
      put(b, waits);
      waits = after;
    }
    if (bucket == last && !dropped) break;
  }
}

/* Whether the samples from begin to end keep to the limits; `sums`: [A + 1, S + 1], of costs and then of lengths. */
static int holds(const Limits *l, const uint64_t *sums, int64_t begin, int64_t end, int64_t width) {
  const int64_t stride = l->count + 1, samples = end - begin;
  if (l->batch_size >= 0 && samples > l->batch_size) return 0;
  if (l->max_tokens >= 0) {
    const uint64_t *lengths = sums + l->additive * stride;
    const uint64_t tokens = l->padded ? (uint64_t)samples * (uint64_t)width : lengths[end] - lengths[begin];
    if ((int64_t)tokens > l->max_tokens) return 0;
  }
  for (int64_t a = 0; a < l->additive; a++)
    if ((int64_t)(sums[a * stride + end] - sums[a * stride + begin]) > l->limits[a]) return 0;
  return 1;
}

static void sum_up(const int64_t *values, int64_t count, uint64_t *sums) {
  sums[0] = 0;
  for (int64_t i = 0; i < count; i++) sums[i + 1] = sums[i] + (uint64_t)values[i];
}

static int64_t width_of(const Limits *l, int64_t sample) {
  const int64_t blocks = (l->lengths[sample] + l->multiple - 1) / l->multiple;
  return (blocks < 1 ? 1 : blocks) * l->multiple;
}

/* Find the least cost of the samples up to each end. */
static void find_costs(const Limits *l, int64_t price, const uint64_t *sums, Begins *b) {
  int32_t low = 0, high = 0; /* groups from the widest to the narrowest */
  b->cost[0] = 0;
  for (int32_t end = 1; end <= l->count; end++) {
    Group last = {width_of(l, end - 1), end - 1, end - 1};
    b->next[end - 1] = b->prev[end - 1] = NONE;
    for (; high > low && b->groups[high - 1].width <= last.width; high--) take_in(b, &last, b->groups + high - 1);
    drop_worse(b, &last);
    while (high > low && !drop_last(b, b->groups + high - 1, last.first, b->groups[high - 1].width)) high--;
    b->groups[high++] = last;
    for (int32_t begin; (begin = b->groups[low].first) < end - 1 && !holds(l, sums, begin, end, b->groups[low].width);) {
      const int32_t after = b->next[begin];
      b->next[begin] = DROPPED;
      if (after >= 0) {
        b->groups[low].first = after;
        b->prev[after] = NONE;
      } else {
        low++;
      }
    }
    b->cost[end] = INT64_MAX;
    for (int32_t g = low; g < high; g++) {
      const int32_t begin = b->groups[g].first;
      const int64_t cost = b->cost[begin] + (end - begin) * costed(b->groups[g].width);
      if (cost < b->cost[end]) {
        b->cost[end] = cost;
        b->from[end] = begin;
      }
    }
    b->cost[end] += price;
  }
}

/* Runs written, or -1 without memory. */
static int64_t least_cost(const Limits *l, int64_t price, int64_t *ends) {
  const int64_t count = l->count, stride = count + 1;
  uint64_t *sums = malloc((size_t)(stride * (l->additive + 1)) * sizeof *sums);
  Begins b = {malloc((size_t)stride * 8), malloc((size_t)stride * 4), malloc((size_t)stride * 4), malloc((size_t)stride * 4),
              malloc((size_t)(2 * stride) * sizeof(Pair)), malloc((size_t)stride * sizeof(Group)),
              calloc((size_t)(BUCKETS * stride), 4), {{0}, NULL}, 0, 0, 0};
  int64_t found = sums && b.cost && b.from && b.next && b.prev && b.pairs && b.groups && b.buckets ? 0 : -1;
  if (found == 0 && !make_bitmap(&b.full, BUCKETS * stride)) found = -1;
  if (found == 0) {
    for (int64_t a = 0; a < l->additive; a++) sum_up(l->costs + a * count, count, sums + a * stride);
    sum_up(l->lengths, count, sums + l->additive * stride);
    for (int64_t i = 0; i < count; i++) {
      const int64_t width = costed(width_of(l, i));
      if (width > b.widest) b.widest = width;
    }
    while (b.widest >> b.shift >= BUCKETS * stride) b.shift++;
    find_costs(l, price, sums, &b);
    for (int64_t end = count; end; end = b.from[end]) found++;
    for (int64_t end = count, at = found; end; end = b.from[end]) ends[--at] = end;
  }
  free(sums);
  free(b.cost);
  free(b.from);
  free(b.next);
  free(b.prev);
  free(b.pairs);
  free(b.groups);
  free(b.buckets);
  free(b.full.words);
  return found;
}

/* ---- the door ----------------------------------------------------------------------- */

typedef struct {
  Py_buffer views[ARRAYS];
  int64_t *data[ARRAYS], sizes[ARRAYS];
  int held;
} Arrays;

static PyObject *give(Arrays *arrays, PyObject *result) {
  while (arrays->held) PyBuffer_Release(arrays->views + --arrays->held);
  return result;
}

/* Take the arrays: the first is read, the others are written. */
static int take(Arrays *arrays, PyObject **objects, int count) {
  arrays->held = 0;
  for (; arrays->held < count; arrays->held++) {
    const int i = arrays->held;
    if (PyObject_GetBuffer(objects[i], arrays->views + i, i ? PyBUF_CONTIG : PyBUF_CONTIG_RO)) {
      give(arrays, NULL);
      return 0;
    }
    arrays->data[i] = arrays->views[i].buf;
    arrays->sizes[i] = (int64_t)(arrays->views[i].len / 8);
  }
  return 1;
}

/* Whether there are not too many lengths, all in [0, most], and how many whole rows they would fill. */
static int in_range(const Arrays *arrays, int64_t most, int64_t width, int64_t *full) {
  *full = 0;
  if (arrays->sizes[0] > MOST) return 0;
  for (int64_t i = 0; i < arrays->sizes[0]; i++) {
    if (arrays->data[0][i] < 0 || arrays->data[0][i] > most) return 0;
    *full += arrays->data[0][i];
  }
  *full /= width;
  return 1;
}

static PyObject *refuse(Arrays *arrays, const char *reason) {
  PyErr_SetString(PyExc_ValueError, reason);
  return give(arrays, NULL);
}

static PyObject *fit(PyObject *self, PyObject *args) { /* lengths, widths, rows, starts, segments, best */
  PyObject *objects[4];
  int best;
  long long segments;
  int64_t opened;
  int32_t widths[COLUMNS];
  Arrays arrays;
  (void)self;
  if (!PyArg_ParseTuple(args, "OOOOLp", objects, objects + 1, objects + 2, objects + 3, &segments, &best)) return NULL;
  if (!take(&arrays, objects, 4)) return NULL;
  const int64_t columns = arrays.sizes[1];
  if (columns < 1 || columns > COLUMNS || segments < 0) return refuse(&arrays, "segments or the number of widths is out of range");
  const int64_t count = arrays.sizes[0] / columns;
  if (arrays.sizes[0] % columns || arrays.sizes[2] < count || arrays.sizes[3] < columns * count)
    return refuse(&arrays, "an array is too short");
  if (count > MOST) return refuse(&arrays, "too many samples");
  for (int64_t c = 0; c < columns; c++) {
    if (arrays.data[1][c] < 1 || arrays.data[1][c] > LARGEST) return refuse(&arrays, "a width is out of range");
    widths[c] = (int32_t)arrays.data[1][c];
    for (int64_t i = c * count; i < (c + 1) * count; i++)
      if (arrays.data[0][i] < 0 || arrays.data[0][i] > widths[c]) return refuse(&arrays, "a length is not in [0, width]");
  }
  Py_BEGIN_ALLOW_THREADS
  if (!best) opened = first_fit(arrays.data[0], count, (int)columns, widths, segments, arrays.data[2], arrays.data[3]);
  else if (columns == 1) opened = best_fit(arrays.data[0], count, widths[0], segments, arrays.data[2], arrays.data[3]);
  else opened = best_fit_of_several(arrays.data[0], count, (int)columns, widths, segments, arrays.data[2], arrays.data[3]);
  Py_END_ALLOW_THREADS
  return give(&arrays, opened < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(opened));
}

static PyObject *cut(PyObject *self, PyObject *args) { /* lengths, width, segments, samples, rows, starts, offsets, pieces */
  PyObject *objects[ARRAYS];
  int width;
  long long segments;
  int64_t full, pieces;
  Arrays arrays;
  (void)self;
  if (!PyArg_ParseTuple(args, "OiLOOOOO", objects, &width, &segments, objects + 1, objects + 2, objects + 3, objects + 4,
                        objects + 5))
    return NULL;
  if (!take(&arrays, objects, ARRAYS)) return NULL;
  if (width < 1 || segments < 0) return refuse(&arrays, "width or segments is out of range");
  if (!in_range(&arrays, LONGEST, width, &full)) return refuse(&arrays, "a length is not in [0, 2**40], or too many");
  for (int i = 1; i < ARRAYS; i++)
    if (arrays.sizes[i] < arrays.sizes[0] + full) return refuse(&arrays, "an array is too short");
  Py_BEGIN_ALLOW_THREADS
  pieces = lay(arrays.data[0], arrays.sizes[0], width, segments, arrays.data + 1);
  Py_END_ALLOW_THREADS
  return give(&arrays, PyLong_FromLongLong(pieces));
}

/* lengths, costs, limits, ends, the four limits; for the least cost also a price per run */
static PyObject *ends_of(PyObject *args, const char *format, int least) {
  PyObject *objects[4];
  long long batch_size, multiple, max_tokens, price = 0;
  int padded;
  int64_t found = 0;
  Arrays arrays;
  if (!PyArg_ParseTuple(args, format, objects, objects + 1, objects + 2, objects + 3, &batch_size, &multiple, &max_tokens,
                        &padded, &price))
    return NULL;
  if (!take(&arrays, objects, 4)) return NULL;
  const Limits limits = {batch_size, multiple, max_tokens, padded, arrays.sizes[0], arrays.sizes[2],
                         arrays.data[0], arrays.data[1], arrays.data[2]};
  if (multiple < 1 || batch_size == 0) return refuse(&arrays, "multiple or batch_size is out of range");
  if (arrays.sizes[1] != limits.count * limits.additive || arrays.sizes[3] < limits.count)
    return refuse(&arrays, "arrays of unequal length");
  if (least && (price < 0 || price > PRICIEST || limits.count > MOST))
    return refuse(&arrays, "the price is not in [0, 2**39], or there are too many samples");
  uint64_t *sums = malloc((size_t)(limits.additive + 1) * sizeof *sums);
  if (sums == NULL) return give(&arrays, PyErr_NoMemory());
  Py_BEGIN_ALLOW_THREADS
  if (least) found = least_cost(&limits, price, arrays.data[3]);
  else
    for (int64_t at = 0; at < limits.count;) arrays.data[3][found++] = at = run_end(&limits, at, sums);
  Py_END_ALLOW_THREADS
  free(sums);
  return give(&arrays, found < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(found));
}

static PyObject *run_ends(PyObject *self, PyObject *args) {
  (void)self;
  return ends_of(args, "OOOOLLLp", 0);
}

static PyObject *least_ends(PyObject *self, PyObject *args) {
  (void)self;
  return ends_of(args, "OOOOLLLpL", 1);
}

static PyMethodDef methods[] = {
    {"fit", fit, METH_VARARGS, "Write the row and the start of each sample; the number of rows."},
    {"cut", cut, METH_VARARGS, "Lay samples end to end and write the pieces; the number of pieces."},
    {"run_ends", run_ends, METH_VARARGS, "Write the ends of the longest runs within the limits; the number of runs."},
    {"least_ends", least_ends, METH_VARARGS, "Write the ends of the runs within the limits that cost least; the number of runs."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_packing", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__packing(void) { return PyModule_Create(&module); }
