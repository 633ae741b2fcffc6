/* Byte-pair encoding: documents of UTF-8 to token ids, without the interpreter's lock.
 *
 * Three steps per word, all by tables that `byte_pairs.py`, `sentencepiece.py` and `word_automaton.py` make:
 *   1. An automaton cuts a document into words: one step per code point, by its kind.
 *   2. A memo of fixed size holds the ids of words met before.
 *   3. A word that is not there is merged as the tokenizers library merges: of all listed pairs of neighbours the one
 *      listed first, and of equal ones the leftmost, until none is left. It begins as bytes, or as characters: one that
 *      the vocabulary lacks is its bytes, or the id of what is unknown.
 * A document with a code point that is set apart, or with the text of an added token, is left out; the caller hands it
 * to the library. Nothing that a memo holds changes an id.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "../../_build.h"

#define POINTS 0x110000
#define ASCII 0x80
#define NONE UINT32_MAX
#define IDS 0xFFFFF       /* ids of a vocabulary, at most */
#define PLACE 0xFFFFFF    /* merges of a vocabulary, at most */
#define FREE UINT64_MAX
#define SLACK 8           /* ids that may be written past the last one */
#define FEW 48            /* pieces of a word up to which looking through all of them is quicker than a heap */
#define WORDS 256         /* of a document that are cut before their ids are looked up */
#define ROOM (WORDS + 2)
#define LINE 64           /* bytes of the cache */
#define HUGE_PAGE (1 << 21)
#define LONGEST (1 << 28) /* bytes of a document; a longer one goes to the library */
#define SPARE (1 << 20)   /* bytes of room for a document that stay between two calls */
#define PAGE 256          /* code points that are looked up together */
#define PAGES (POINTS / PAGE)

/* What is put before a document: nothing, a space, or a space unless one is there. */
enum { BARE, SPACED, SPACED_ONCE };

/* A step of the automaton: the row of the next state in bits 0 to 23, and what happens before the code point. */
#define ROW 0xFFFFFFu
#define ENDS (1u << 24)    /* a word may end here */
#define BEGINS (1u << 25)  /* it ends here, and the next one begins with this code point */
#define STUCK (1u << 26)   /* no word goes on: it ended where it last might */
#define TEXT (1u << 27)    /* the text of an added token may begin here */
#define APART (1u << 28)   /* the code point is set apart */
#define SELDOM (STUCK | TEXT | APART)

#if defined(__GNUC__)
#define ALONE __attribute__((noinline)) /* so that the loop has the registers */
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define FETCH(x) __builtin_prefetch(x, 1)
#else
#define ALONE
#define LIKELY(x) (x)
#define FETCH(x) (void)(x)
#endif

typedef struct {
  uint8_t *kinds;  /* [POINTS] */
  uint32_t *steps; /* [states, 128 + kinds]: of each ASCII character, of each kind; the last kind is a document's end */
  uint32_t start, end_kind;
  uint32_t of_byte[256];
  uint32_t *points;    /* [number of pages, PAGE] the ids of characters, or NONE; NULL where a word begins as bytes */
  uint16_t *pages;     /* [PAGES] where the points of a page are */
  uint32_t unknown;    /* the id of a character without one; NONE if it is its bytes */
  int fused, before;   /* whether unknown neighbours are one; what is put before a document */
  uint64_t *merges;   /* by hash: left id << 44 | right id << 24 | place in the list; FREE where there is none */
  uint64_t merge_mask;
  uint32_t *made;     /* by place: what a pair becomes */
  uint32_t *of_bytes; /* [256, 256] the place of each pair of bytes, or NONE */
  uint8_t *token_bytes; /* whole words that are taken as they are, end to end */
  int64_t *token_ends, tokens;
  uint32_t *token_ids, *token_slots; /* slots: number of a token, or NONE */
  uint64_t token_mask;
  uint8_t *texts; /* of added tokens, sorted */
  int64_t *text_ends, texts_count;
} Engine;

/* Words of up to 15 bytes and 3 ids, two to a line of the processor's cache; of up to 31 bytes and 7 ids, one. */
typedef struct {
  uint64_t low, high; /* the bytes, and how many in the highest byte; 0: free */
  uint32_t ids[3], count;
} Short;
typedef struct {
  uint64_t key[4];
  uint32_t ids[7], count;
} Long;
typedef struct {
  void *held;
  Short *shorts;
  Long *longs;
  uint64_t short_mask, long_mask; /* lines - 1 */
  int failed;                     /* no memory */
  uint64_t met, made;             /* words, and those that were merged */
  uint8_t *spaced;                /* room for a document and what is put before it */
  int64_t spaced_size;
} Memo;

static inline uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t hash = (a ^ (b * 0x9E3779B97F4A7C15ULL)) * 0xD6E8FEB86659FD93ULL;
  hash ^= hash >> 32;
  hash *= 0xD6E8FEB86659FD93ULL;
  return hash ^ (hash >> 29);
}

static uint64_t hash_of(const uint8_t *at, int64_t size) {
  uint64_t hash = (uint64_t)size;
  for (; size > 0; at += 8, size -= 8) {
    uint64_t part = 0;
    memcpy(&part, at, size < 8 ? (size_t)size : 8);
    hash = mixed(part, hash);
  }
  return hash;
}

/* ---- merging one word ---- */

/* The place of a pair in the list of merges, or NONE. */
static inline uint32_t place_of(const Engine *e, uint32_t left, uint32_t right) {
  uint64_t pair = (uint64_t)left << 20 | right;
  for (uint64_t slot = mixed(pair, 1);; slot++) {
    uint64_t found = e->merges[slot & e->merge_mask];
    if (found >> 24 == pair) return (uint32_t)found & PLACE;
    if (found == FREE) return NONE;
  }
}

/* The code point at `at`, which is before `end`; its bytes in `size`. Bytes that are no UTF-8 give one that is set apart. */
static inline uint32_t point_at(const uint8_t *at, const uint8_t *end, uint32_t *size) {
  uint32_t lead = at[0];
  *size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (*size == 1) return lead;
  if (lead < 0xC2 || lead > 0xF4 || end - at < *size) return POINTS;
  if (*size == 2) return (lead & 0x1F) << 6 | (at[1] & 0x3F);
  if (*size == 3) return (lead & 0xF) << 12 | (uint32_t)(at[1] & 0x3F) << 6 | (at[2] & 0x3F);
  return (lead & 7) << 18 | (uint32_t)(at[1] & 0x3F) << 12 | (uint32_t)(at[2] & 0x3F) << 6 | (at[3] & 0x3F);
}

/* The ids of a word before any merge; how many there are: at most one for each byte. */
static uint32_t pieces_of(const Engine *e, const uint8_t *word, uint32_t size, uint32_t *ids) {
  const uint8_t *at = word, *end = word + size;
  uint32_t count = 0, bytes;
  int unknown = 0; /* whether the last one is */
  if (!e->points)
    for (; count < size; count++) ids[count] = e->of_byte[word[count]];
  else
    for (; at < end; at += bytes) {
      uint32_t point = point_at(at, end, &bytes), id = e->points[e->pages[point / PAGE] * PAGE + point % PAGE];
      if (id != NONE) {
        ids[count++] = id, unknown = 0;
      } else if (e->unknown != NONE) {
        if (!unknown || !e->fused) ids[count++] = e->unknown;
        unknown = 1;
      } else {
        for (uint32_t i = 0; i < bytes; i++) ids[count++] = e->of_byte[at[i]];
      }
    }
  return count;
}

/* At most FEW bytes: look through all pairs for the best one, merge it, and move up what stands behind it. */
static uint32_t merge_few(const Engine *e, const uint8_t *word, uint32_t bytes, uint32_t *ids) {
  uint32_t places[FEW + 1], size = pieces_of(e, word, bytes, ids);
  if (e->points)
    for (uint32_t i = 0; i + 1 < size; i++) places[i] = place_of(e, ids[i], ids[i + 1]);
  else
    for (uint32_t i = 0; i + 1 < size; i++) places[i] = e->of_bytes[256 * word[i] + word[i + 1]];
  while (size > 1) {
    uint32_t best = 0;
    for (uint32_t i = 1; i + 1 < size; i++)
      if (places[i] < places[best]) best = i;
    if (places[best] == NONE) break;
    ids[best] = e->made[places[best]];
    size--;
    for (uint32_t i = best + 1; i < size; i++) ids[i] = ids[i + 1];
    for (uint32_t i = best + 1; i + 1 < size; i++) places[i] = places[i + 1];
    if (best + 1 < size) places[best] = place_of(e, ids[best], ids[best + 1]);
    if (best) places[best - 1] = place_of(e, ids[best - 1], ids[best]);
  }
  return size;
}

/* A heap of pairs as place in the list << 32 | number of the piece; the smallest on top. */
static void sift_up(uint64_t *heap, int64_t at) {
  uint64_t moved = heap[at];
  for (; at && heap[(at - 1) / 2] > moved; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
  heap[at] = moved;
}
static void sift_down(uint64_t *heap, int64_t count) {
  int64_t at = 0;
  uint64_t moved = heap[0];
  for (int64_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && heap[child + 1] < heap[child]) child++;
    if (heap[child] >= moved) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

typedef struct {
  uint32_t id, before, after, place; /* place: of the pair with the piece after it */
} Piece;

static void pair_up(const Engine *e, Piece *pieces, uint32_t at, uint64_t *heap, int64_t *count) {
  Piece *p = pieces + at;
  p->place = p->after == NONE ? NONE : place_of(e, p->id, pieces[p->after].id);
  if (p->place == NONE) return;
  heap[*count] = (uint64_t)p->place << 32 | at;
  sift_up(heap, (*count)++);
}

/* Any number of bytes, in n log n steps; NONE if there is no memory. Each merge adds at most two pairs to the heap. */
static uint32_t merge_many(const Engine *e, const uint8_t *word, uint32_t bytes, uint32_t *ids) {
  uint32_t size = pieces_of(e, word, bytes, ids);
  Piece *pieces = malloc(size * sizeof(Piece));
  uint64_t *heap = malloc(3 * (size_t)size * sizeof(uint64_t));
  uint32_t left = 0;
  int64_t count = 0;
  if (!pieces || !heap) {
    free(pieces), free(heap);
    return NONE;
  }
  for (uint32_t i = 0; i < size; i++)
    pieces[i] = (Piece){ids[i], i - 1, i + 1 < size ? i + 1 : NONE, NONE};
  for (uint32_t i = 0; i < size; i++) pair_up(e, pieces, i, heap, &count);
  while (count) {
    uint64_t top = heap[0];
    heap[0] = heap[--count];
    if (count) sift_down(heap, count);
    Piece *p = pieces + (uint32_t)top;
    if (p->place != (uint32_t)(top >> 32)) continue; /* this pair is no more */
    Piece *gone = pieces + p->after;
    p->id = e->made[p->place], p->after = gone->after;
    gone->place = NONE;
    if (p->after != NONE) pieces[p->after].before = (uint32_t)(p - pieces);
    pair_up(e, pieces, (uint32_t)(p - pieces), heap, &count);
    if (p->before != NONE) pair_up(e, pieces, p->before, heap, &count);
  }
  for (uint32_t i = 0; i != NONE; i = pieces[i].after) ids[left++] = pieces[i].id;
  free(pieces), free(heap);
  return left;
}

static uint32_t token_of(const Engine *e, const uint8_t *word, int64_t size) {
  for (uint64_t slot = hash_of(word, size);; slot++) {
    uint32_t token = e->token_slots[slot & e->token_mask];
    if (token == NONE) return NONE;
    int64_t begin = token ? e->token_ends[token - 1] : 0;
    if (e->token_ends[token] - begin == size && !memcmp(e->token_bytes + begin, word, (size_t)size))
      return e->token_ids[token];
  }
}

static uint32_t merged(const Engine *e, Memo *m, const uint8_t *word, int64_t size, uint32_t *ids) {
  m->made++;
  if (e->tokens && (ids[0] = token_of(e, word, size)) != NONE) return 1;
  if (size <= FEW) return merge_few(e, word, (uint32_t)size, ids);
  uint32_t count = merge_many(e, word, (uint32_t)size, ids);
  if (count != NONE) return count;
  m->failed = 1;
  return 0;
}

/* ---- the memo ---- */

static uint32_t *put_long(const Engine *e, Memo *m, const uint8_t *word, int64_t size, uint32_t *out, Short *pair,
                          uint64_t low, uint64_t high) {
  uint8_t bytes[32] = {0};
  uint64_t key[4];
  memcpy(bytes, word, (size_t)size);
  bytes[31] = (uint8_t)size;
  memcpy(key, bytes, 32);
  Long *line = m->longs + (mixed(mixed(key[0], key[1]), mixed(key[2], key[3])) & m->long_mask);
  if (!memcmp(line->key, key, 32)) {
    memcpy(out, line->ids, line->count * sizeof(uint32_t));
    return out + line->count;
  }
  uint32_t count = merged(e, m, word, size, out);
  if (pair && count && count <= 3) {
    pair[1] = pair[0];
    pair[0].low = low, pair[0].high = high, pair[0].count = count;
    memcpy(pair[0].ids, out, count * sizeof(uint32_t));
  } else if (count && count <= 7) {
    memcpy(line->key, key, 32);
    memcpy(line->ids, out, count * sizeof(uint32_t));
    line->count = count;
  }
  return out + count;
}

/* Of a word of up to 15 bytes the memo's key; of a longer one nothing, that is 0. `limit`: how far may be read. */
static inline void key_of(const uint8_t *word, uint32_t size, const uint8_t *limit, uint64_t *low, uint64_t *high) {
  static const uint64_t kept[16][2] = {
#define OF(n) (n >= 8 ? ~0ULL : (1ULL << 8 * (n & 7)) - 1)
      {0, 0}, {OF(1), 0}, {OF(2), 0}, {OF(3), 0}, {OF(4), 0}, {OF(5), 0}, {OF(6), 0}, {OF(7), 0}, {OF(8), 0},
      {OF(8), OF(1)}, {OF(8), OF(2)}, {OF(8), OF(3)}, {OF(8), OF(4)}, {OF(8), OF(5)}, {OF(8), OF(6)}, {OF(8), OF(7)}};
  *low = *high = 0;
  if (size > 15) return;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  if (LIKELY(limit - word >= 16)) {
    memcpy(low, word, 8), memcpy(high, word + 8, 8);
    *low &= kept[size][0];
    *high = (*high & kept[size][1]) | (uint64_t)size << 56;
    return;
  }
#endif
  uint8_t bytes[16] = {0};
  memcpy(bytes, word, size);
  bytes[15] = (uint8_t)size;
  memcpy(low, bytes, 8), memcpy(high, bytes + 8, 8);
}

/* The ids of the words that end at these places of a document, in two passes: first all keys, so that the lines of the
 * memo are on their way before they are looked at. */
ALONE static uint32_t *put(const Engine *e, Memo *m, const uint8_t *text, uint32_t begin, const uint32_t *ends, int count,
                     const uint8_t *limit, uint32_t *out) {
  uint64_t low[ROOM], high[ROOM];
  Short *lines[ROOM];
  uint32_t at = begin;
  for (int i = 0; i < count; at = ends[i++]) {
    key_of(text + at, ends[i] - at, limit, low + i, high + i);
    lines[i] = m->shorts + 2 * (mixed(low[i], high[i]) & m->short_mask);
    FETCH(lines[i]);
  }
  m->met += (uint64_t)count, at = begin;
  for (int i = 0; i < count; at = ends[i++]) {
    Short *line = lines[i];
    int second = (line[1].low == low[i]) & (line[1].high == high[i]); /* no processor could foresee which of the two */
    Short *found = line + second;
    if (!LIKELY((found->low == low[i]) & (found->high == high[i]) & (high[i] != 0))) {
      uint32_t size = ends[i] - at;
      if (size <= 31) out = put_long(e, m, text + at, size, out, high[i] ? line : NULL, low[i], high[i]);
      else out += merged(e, m, text + at, size, out);
      continue;
    }
    memcpy(out, found->ids, sizeof found->ids);
    out += found->count;
  }
  return out;
}

/* ---- cutting one document ---- */

/* Whether the text of an added token stands here: narrow the sorted texts down, byte by byte. */
static int text_at(const Engine *e, const uint8_t *at, const uint8_t *end) {
  int64_t low = 0, high = e->texts_count;
  for (int64_t depth = 0; low < high; depth++) {
    int64_t begin = low ? e->text_ends[low - 1] : 0;
    if (e->text_ends[low] - begin == depth) return 1; /* of those that begin alike, the shortest comes first */
    if (at + depth == end) return 0;
    for (int side = 0; side < 2; side++) {
      int64_t from = low, to = high; /* the first text whose byte is at least this one; then, that is above it */
      while (from < to) {
        int64_t middle = from + (to - from) / 2;
        uint8_t byte = e->texts[(middle ? e->text_ends[middle - 1] : 0) + depth];
        if (side ? byte <= at[depth] : byte < at[depth]) from = middle + 1;
        else to = middle;
      }
      *(side ? &high : &low) = from;
    }
  }
  return 0;
}

/* Write the ids of a document; NULL if it is one for the library. A step is taken without asking whether a word ends
 * there, which no processor could foresee: the place is noted in any case, and counted if it does. */
ALONE static uint32_t *document(const Engine *e, Memo *m, const uint8_t *text, const uint8_t *end, const uint8_t *limit,
                          uint32_t *out) {
  const uint32_t *steps = e->steps;
  const uint8_t *kinds = e->kinds, *at = text;
  const uint8_t *last = text, *gap = NULL; /* where the word last might end; where text of no word ends so far */
  const uint32_t end_column = ASCII + e->end_kind;
  uint32_t ends[ROOM], begin = 0, state = e->start, seldom = SELDOM; /* begin: of the first word that is not yet put */
  int count = 0;
  for (;;) {
    uint32_t column = end_column, size = 1;
    if (LIKELY(at < end)) {
      column = *at;
      if (!LIKELY(column < ASCII)) {
        uint32_t point = point_at(at, end, &size);
        if (point >= POINTS) return NULL;
        column = ASCII + kinds[point];
      }
    } else if (gap == end || (!gap && (count ? ends[count - 1] : begin) == (uint32_t)(end - text))) {
      break;
    }
    uint32_t step = steps[state + column];
    if (!LIKELY(!(step & seldom))) {
      if (step & APART || (step & TEXT && text_at(e, at, end))) return NULL;
      if (step & seldom & (STUCK | BEGINS)) {
        const uint8_t *word = gap ? gap : text + (count ? ends[count - 1] : begin);
        if (step & ENDS) last = at;
        if (last > word) {
          if (gap) ends[count++] = (uint32_t)(gap - text), gap = NULL, seldom = SELDOM;
          ends[count++] = (uint32_t)(last - text);
        } else { /* no word begins here: what lies between words is a word too */
          point_at(word, end, &size);
          gap = last = word + size, seldom = SELDOM | BEGINS;
        }
        at = last, state = e->start;
        if (count >= WORDS) {
          out = put(e, m, text, begin, ends, count, limit, out);
          begin = ends[count - 1], count = 0;
        }
        continue;
      }
    }
    last = step & ENDS ? at : last;
    ends[count] = (uint32_t)(at - text);
    count += step / BEGINS & 1;
    state = step & ROW, at += size;
    if (!LIKELY(count < WORDS)) {
      out = put(e, m, text, begin, ends, count, limit, out);
      begin = ends[count - 1], count = 0;
    }
  }
  if (gap) ends[count++] = (uint32_t)(gap - text);
  return put(e, m, text, begin, ends, count, limit, out);
}

/* A document with a space before it. `out` has room for one more id than the document has bytes. */
static uint32_t *spaced(const Engine *e, Memo *m, const uint8_t *text, const uint8_t *end, uint32_t *out) {
  int64_t size = end - text + 1;
  if (size > m->spaced_size) {
    free(m->spaced);
    m->spaced_size = 0, m->spaced = malloc((size_t)size);
    if (!m->spaced) return m->failed = 1, out;
    m->spaced_size = size;
  }
  m->spaced[0] = ' ';
  memcpy(m->spaced + 1, text, (size_t)size - 1);
  return document(e, m, m->spaced, m->spaced + size, m->spaced + size, out);
}

/* Write the ids of a document, and of what is put before it; NULL if it is one for the library. */
static uint32_t *begun(const Engine *e, Memo *m, const uint8_t *text, const uint8_t *end, const uint8_t *limit,
                       uint32_t *out) {
  if (end - text > LONGEST) return NULL;
  int there = end - text > 0 && (text[0] == ' ' || (end - text > 2 && !memcmp(text, "\xE2\x96\x81", 3)));
  if (e->before == BARE || text == end || (e->before == SPACED_ONCE && there)) return document(e, m, text, end, limit, out);
  return spaced(e, m, text, end, out);
}

/* ---- what Python sees ---- */

static void free_engine(Engine *e) {
  if (!e) return;
  free(e->kinds), free(e->steps), free(e->merges), free(e->of_bytes), free(e->made);
  free(e->token_bytes), free(e->token_ends), free(e->token_ids), free(e->token_slots);
  free(e->texts), free(e->text_ends), free(e->points), free(e->pages);
  free(e);
}
static void drop_engine(PyObject *held) { free_engine(PyCapsule_GetPointer(held, "spiral.engine")); }

static void free_memo(Memo *m) {
  if (!m) return;
  free(m->held), free(m->spaced);
  free(m);
}
static void drop_memo(PyObject *held) { free_memo(PyCapsule_GetPointer(held, "spiral.memo")); }

static void *copy_of(const Py_buffer *view) {
  void *out = malloc(view->len ? (size_t)view->len : 1);
  if (out) memcpy(out, view->buf, (size_t)view->len);
  return out;
}

static uint64_t mask_for(int64_t count) {
  uint64_t slots = 16;
  while (slots < 2 * (uint64_t)count) slots *= 2;
  return slots - 1;
}

/* Whether `count` ends rise to the length of the bytes that they cut. */
static int rise_to(const int64_t *ends, int64_t count, int64_t length) {
  for (int64_t i = 0; i < count; i++)
    if (ends[i] <= (i ? ends[i - 1] : 0)) return 0;
  return (count ? ends[count - 1] : 0) == length;
}

enum { KINDS, STEPS, OF_BYTE, LEFT, RIGHT, MADE, TOKEN_BYTES, TOKEN_ENDS, TOKEN_IDS, TEXTS, TEXT_ENDS, CHARACTERS, VIEWS };

static const char *refused(const Py_buffer *v, long long width, long long start) {
  int64_t steps = v[STEPS].len / 4, merges = v[LEFT].len / 4;
  const uint8_t *kinds = v[KINDS].buf;
  const uint32_t *step = v[STEPS].buf;
  if (v[CHARACTERS].len % 8) return "characters are pairs of a code point and its id";
  for (int64_t i = 0; i < v[CHARACTERS].len / 4; i += 2)
    if (((uint32_t *)v[CHARACTERS].buf)[i] >= POINTS) return "a code point is too large";
  if (v[KINDS].len != POINTS || v[OF_BYTE].len != 256 * 4) return "kinds are of all code points, ids of all bytes";
  if (width < 1 || width > 256 || steps % width || steps / width * (ASCII + width) > ROW || start < 0 || start > steps - width || start % width)
    return "steps are [states, kinds], and begin in one of the states";
  for (int64_t i = 0; i < POINTS; i++)
    if (kinds[i] >= width - 1) return "a code point's kind has no steps, or is the end's";
  for (int64_t i = 0; i < steps; i++)
    if ((step[i] & ROW) > steps - width || (step[i] & ROW) % width) return "a step leads nowhere";
  for (int64_t i = width - 1; i < steps; i += width)
    if (!(step[i] & STUCK) || step[i] & BEGINS) return "a word goes on past the end";
  if (v[RIGHT].len != v[LEFT].len || v[MADE].len != v[LEFT].len || merges >= PLACE) return "merges differ in number, or are too many";
  for (int64_t i = 0; i < merges; i++)
    for (int j = LEFT; j <= MADE; j++)
        if (((uint32_t *)v[j].buf)[i] >= IDS) return "an id is too large";
  if (v[TOKEN_IDS].len / 4 != v[TOKEN_ENDS].len / 8) return "tokens differ in number";
  if (!rise_to(v[TOKEN_ENDS].buf, v[TOKEN_ENDS].len / 8, v[TOKEN_BYTES].len)) return "tokens do not rise";
  if (!rise_to(v[TEXT_ENDS].buf, v[TEXT_ENDS].len / 8, v[TEXTS].len)) return "texts do not rise";
  return NULL;
}

/* The steps with a column for each ASCII character: one look less for most of a text. */
static uint32_t *spread(const Py_buffer *v, int64_t width) {
  int64_t states = v[STEPS].len / 4 / width;
  const uint32_t *from = v[STEPS].buf;
  const uint8_t *kinds = v[KINDS].buf;
  uint32_t *out = malloc((size_t)(states * (ASCII + width)) * sizeof(uint32_t));
  for (int64_t i = 0; out && i < states; i++)
    for (int64_t j = 0; j < ASCII + width; j++) {
      uint32_t step = from[i * width + (j < ASCII ? kinds[j] : j - ASCII)];
      out[i * (ASCII + width) + j] = (step & ~ROW) | (uint32_t)((step & ROW) / width * (ASCII + width));
    }
  return out;
}

/* Look-up of characters, by pages of neighbours; page 0 has none. Whether there was memory. */
static int characters(Engine *e, const Py_buffer *v) {
  const uint32_t *listed = v->buf;
  int64_t count = v->len / 8;
  uint32_t pages = 1;
  if (!count) return 1;
  e->pages = calloc(PAGES, sizeof(uint16_t));
  if (!e->pages) return 0;
  for (int64_t i = 0; i < count; i++)
    if (!e->pages[listed[2 * i] / PAGE]) e->pages[listed[2 * i] / PAGE] = (uint16_t)pages++;
  e->points = malloc((size_t)pages * PAGE * sizeof(uint32_t));
  if (!e->points) return 0;
  memset(e->points, 0xFF, (size_t)pages * PAGE * sizeof(uint32_t));
  for (int64_t i = 0; i < count; i++)
    e->points[e->pages[listed[2 * i] / PAGE] * PAGE + listed[2 * i] % PAGE] = listed[2 * i + 1];
  return 1;
}

static Engine *engine_of(const Py_buffer *v, long long width, long long start) {
  Engine *e = calloc(1, sizeof(Engine));
  if (!e) return NULL;
  int64_t merges = v[LEFT].len / 4;
  const uint32_t *left = v[LEFT].buf, *right = v[RIGHT].buf;
  e->start = (uint32_t)(start / width * (ASCII + width)), e->end_kind = (uint32_t)width - 1;
  e->tokens = v[TOKEN_ENDS].len / 8, e->texts_count = v[TEXT_ENDS].len / 8;
  e->merge_mask = mask_for(merges), e->token_mask = mask_for(e->tokens);
  memcpy(e->of_byte, v[OF_BYTE].buf, sizeof e->of_byte);
  e->kinds = copy_of(v + KINDS), e->steps = spread(v, width);
  e->token_bytes = copy_of(v + TOKEN_BYTES), e->token_ends = copy_of(v + TOKEN_ENDS);
  e->token_ids = copy_of(v + TOKEN_IDS), e->texts = copy_of(v + TEXTS), e->text_ends = copy_of(v + TEXT_ENDS);
  e->merges = malloc((e->merge_mask + 1) * sizeof(uint64_t)), e->made = copy_of(v + MADE);
  e->token_slots = malloc((e->token_mask + 1) * sizeof(uint32_t));
  e->of_bytes = malloc(256 * 256 * sizeof(uint32_t));
  if (!characters(e, v + CHARACTERS) || !e->kinds || !e->steps || !e->of_bytes || !e->made || !e->token_bytes || !e->token_ends || !e->token_ids || !e->texts || !e->text_ends ||
      !e->merges || !e->token_slots) {
    free_engine(e);
    return NULL;
  }
  memset(e->merges, 0xFF, (e->merge_mask + 1) * sizeof(uint64_t));
  memset(e->token_slots, 0xFF, (e->token_mask + 1) * sizeof(uint32_t));
  for (int64_t i = 0; i < merges; i++) {
    uint64_t pair = (uint64_t)left[i] << 20 | right[i], slot = mixed(pair, 1);
    while (e->merges[slot & e->merge_mask] != FREE) slot++;
    e->merges[slot & e->merge_mask] = pair << 24 | (uint64_t)i;
  }
  for (int one = 0; one < 256; one++)
    for (int other = 0; other < 256; other++) {
      uint32_t first = e->of_byte[one], second = e->of_byte[other];
      e->of_bytes[256 * one + other] = first < IDS && second < IDS ? place_of(e, first, second) : NONE;
    }
  for (int64_t i = 0; i < e->tokens; i++) {
    int64_t begin = i ? e->token_ends[i - 1] : 0;
    uint64_t slot = hash_of(e->token_bytes + begin, e->token_ends[i] - begin);
    while (e->token_slots[slot & e->token_mask] != NONE) slot++;
    e->token_slots[slot & e->token_mask] = (uint32_t)i;
  }
  return e;
}

/* width, start, kinds, steps, id of each byte, left, right and made ids [merges], tokens' bytes, ends, ids, texts, ends,
 * characters and their ids [characters, 2], id of what is unknown, whether such are fused, what is put before a document */
static PyObject *engine(PyObject *self, PyObject *args) {
  Py_buffer v[VIEWS];
  long long width, start;
  unsigned int unknown;
  int fused, before;
  if (!PyArg_ParseTuple(args, "LLy*y*y*y*y*y*y*y*y*y*y*y*Ipi", &width, &start, v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6,
                        v + 7, v + 8, v + 9, v + 10, v + 11, &unknown, &fused, &before))
    return NULL;
  const char *found = refused(v, width, start);
  Engine *made = found ? NULL : engine_of(v, width, start);
  for (int i = 0; i < VIEWS; i++) PyBuffer_Release(v + i);
  if (found) return PyErr_SetString(PyExc_ValueError, found), NULL;
  if (!made) return PyErr_NoMemory();
  made->unknown = unknown, made->fused = fused, made->before = before;
  PyObject *held = PyCapsule_New(made, "spiral.engine", drop_engine);
  if (!held) free_engine(made);
  return held;
}

/* bits of the number of lines for short words, for long ones: 64 bytes each */
static PyObject *memo(PyObject *self, PyObject *args) {
  int short_bits, long_bits;
  if (!PyArg_ParseTuple(args, "ii", &short_bits, &long_bits)) return NULL;
  if (short_bits < 0 || short_bits > 26 || long_bits < 0 || long_bits > 26)
    return PyErr_SetString(PyExc_ValueError, "a memo has 1 to 2^26 lines of each kind"), NULL;
  Memo *m = calloc(1, sizeof(Memo));
  if (!m) return PyErr_NoMemory();
  m->short_mask = (1ULL << short_bits) - 1, m->long_mask = (1ULL << long_bits) - 1;
  size_t size = (m->short_mask + m->long_mask + 2) * LINE, page = size >= HUGE_PAGE ? HUGE_PAGE : LINE;
  m->held = malloc(size + page);
  if (!m->held) return free_memo(m), PyErr_NoMemory();
  m->shorts = (Short *)(((uintptr_t)m->held + page - 1) / page * page); /* no line of the memo on two of the cache */
#ifdef MADV_HUGEPAGE
  madvise(m->shorts, size, MADV_HUGEPAGE); /* a look into the memo is one into a random page; refused, it is only slower */
#endif
  memset(m->shorts, 0, size);
  m->longs = (Long *)(m->shorts + 2 * (m->short_mask + 1));
  PyObject *held = PyCapsule_New(m, "spiral.memo", drop_memo);
  if (!held) free_memo(m);
  return held;
}

/* engine, memo, text, offsets [S + 1] into it, out [N], counts [S]: the number of ids, and of documents left out */
static PyObject *encode(PyObject *self, PyObject *args) {
  PyObject *engine_held, *memo_held;
  Py_buffer text, offsets, out, counts;
  if (!PyArg_ParseTuple(args, "OOy*y*w*w*", &engine_held, &memo_held, &text, &offsets, &out, &counts)) return NULL;
  Engine *e = PyCapsule_GetPointer(engine_held, "spiral.engine");
  Memo *m = e ? PyCapsule_GetPointer(memo_held, "spiral.memo") : NULL;
  int64_t documents = counts.len / 8, left_out = 0;
  const int64_t *at = offsets.buf;
  uint32_t *begin = out.buf, *next = begin;
  int right = m && offsets.len == counts.len + 8 && at[0] >= 0 && at[documents] <= text.len;
  for (int64_t i = 0; right && i < documents; i++) right = at[i] <= at[i + 1];
  right = right && out.len / 4 >= at[documents] - at[0] + (e->before == BARE ? 0 : documents) + SLACK;
  if (right) {
    Py_BEGIN_ALLOW_THREADS;
    const uint8_t *bytes = text.buf, *limit = bytes + text.len;
    m->failed = 0;
    for (int64_t i = 0; i < documents && !m->failed; i++) {
      uint32_t *end = begun(e, m, bytes + at[i], bytes + at[i + 1], limit, next);
      ((int64_t *)counts.buf)[i] = end ? end - next : -1;
      left_out += !end;
      if (end) next = end;
    }
    if (m->spaced_size > SPARE) free(m->spaced), m->spaced = NULL, m->spaced_size = 0;
    Py_END_ALLOW_THREADS;
  }
  int failed = right && m->failed;
  PyBuffer_Release(&text), PyBuffer_Release(&offsets), PyBuffer_Release(&out), PyBuffer_Release(&counts);
  if (!m) return NULL; /* PyCapsule_GetPointer set the error */
  if (!right) return PyErr_SetString(PyExc_ValueError, "offsets, text, counts and room for ids do not agree"), NULL;
  if (failed) return PyErr_NoMemory();
  return Py_BuildValue("LL", (long long)(next - begin), (long long)left_out);
}

/* memo: the words met, and those among them that were merged, not remembered */
static PyObject *met(PyObject *self, PyObject *held) {
  Memo *m = PyCapsule_GetPointer(held, "spiral.memo");
  return m ? Py_BuildValue("KK", (unsigned long long)m->met, (unsigned long long)m->made) : NULL;
}

static PyMethodDef methods[] = {
    {"engine", engine, METH_VARARGS, "The tables of a tokenizer."},
    {"memo", memo, METH_VARARGS, "Room for the ids of words; for one thread at a time."},
    {"encode", encode, METH_VARARGS, "Encode documents; the count of one that is left out is -1."},
    {"met", met, METH_O, "How many words a memo met, and how many of them were merged."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_encode", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__encode(void) { return PyModule_Create(&module); }
