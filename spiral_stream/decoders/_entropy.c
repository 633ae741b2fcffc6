/* Cut a baseline JPEG to the blocks that a crop needs, before anything is decoded.
 *
 * The bits of a JPEG say nothing about where its rows begin, so a decoder reads all of them up to the last row of a crop.
 * An index written beside them says where every k-th MCU begins and what the DC values are there. `cut` then writes a
 * smaller JPEG of the MCUs around a crop; the DC values of the first MCU of each row are coded anew, as differences to the
 * last MCU of the row before. Its coefficients are those of the original, so any decoder gives the same pixels inside.
 *
 * Behind it stand PAD bytes that nobody reads: libjpeg-turbo takes its slow way through an MCU where fewer than 512 bytes a
 * block are left of the data, and up to a restart marker, so there are none.
 *
 * The index is an application segment of the JPEG itself: an 8-byte name, k, and for each group of k MCUs the bits that it
 * takes (u16) and the DC values before it (three i16), little-endian. Everything that does not fit is refused, and the
 * JPEG is decoded as it is.
 *
 * Source: ITU-T T.81, annexes B (markers), F.1.2 and F.2.2 (sequential Huffman coding).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { SOF0 = 0xC0, SOF1 = 0xC1, DHT = 0xC4, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD, APP0 = 0xE0 };
enum { OURS = 0xEB, ADOBE = 0xEE, COM = 0xFE };
enum { QUICK = 9, HEAD = 12, ENTRY = 8, MARGIN = 4, MOST = 65535 - 2 - HEAD };
enum { PAD = 512 * 10 }; /* bytes behind a JPEG in the scratch: a MCU has at most 10 blocks */
enum { SLACK = 512 }; /* zeros behind the bits: more than a block may read past their end */
static const uint8_t NAME[8] = {'S', 'p', 'i', 'r', 'a', 'l', 'M', 1};

typedef struct {
  int used;
  uint16_t quick[1 << QUICK];        /* length << 8 | symbol; 0: longer */
  int32_t last[18], first[17];       /* of each length: the last code (-1: none), and where its symbols begin, less the first */
  uint8_t symbols[256], lengths[12]; /* the codes of DC symbols, to write them */
  uint16_t codes[12];
} Table;

typedef struct {
  const uint8_t *data;
  Py_ssize_t size, frame, scan, start; /* where the frame's and the scan's segments begin, and the coded bits */
  int height, width, components, restarts;
  int across[3], down[3], dc[3], ac[3];
  int mcu_w, mcu_h, columns, rows; /* pixels of an MCU, and MCUs */
  const uint8_t *index;
  int index_size;
  Table tables[2][4];
} Image;

/* ---- reading a header */

static int big(const uint8_t *at) { return at[0] << 8 | at[1]; }

static int read_tables(Image *image, const uint8_t *at, int size) {
  while (size >= 17) {
    const int kind = at[0] >> 4, name = at[0] & 15;
    if (kind > 1 || name > 3) return 0;
    Table *t = &image->tables[kind][name];
    memset(t, 0, sizeof *t);
    int count = 0, code = 0;
    for (int length = 1; length <= 16; length++) count += at[length];
    if (count > 256 || size < 17 + count) return 0;
    memcpy(t->symbols, at + 17, count);
    for (int length = 1, k = 0; length <= 16; length++, code <<= 1) {
      t->first[length] = k - code;
      for (int i = 0; i < at[length]; i++, k++, code++) {
        if (code >= 1 << length) return 0;
        const uint8_t symbol = t->symbols[k];
        if (kind == 0 && symbol > 11) return 0;
        if (kind == 0) t->codes[symbol] = (uint16_t)code, t->lengths[symbol] = (uint8_t)length;
        if (length > QUICK) continue;
        const int from = code << (QUICK - length), number = 1 << (QUICK - length);
        for (int j = 0; j < number; j++) t->quick[from + j] = (uint16_t)(length << 8 | symbol);
      }
      t->last[length] = at[length] ? code - 1 : -1;
    }
    t->last[17] = 1 << 30;
    t->used = 1;
    at += 17 + count, size -= 17 + count;
  }
  return size == 0;
}

static int read_frame(Image *image, const uint8_t *at, int size) {
  if (size < 6 || at[0] != 8) return 0;
  image->height = big(at + 1), image->width = big(at + 3), image->components = at[5];
  if ((image->components != 1 && image->components != 3) || size != 6 + 3 * image->components) return 0;
  int most_across = 1, most_down = 1;
  for (int i = 0; i < image->components; i++) {
    int across = at[6 + 3 * i + 1] >> 4, down = at[6 + 3 * i + 1] & 15;
    if (image->components == 1) across = down = 1; /* one block is an MCU, whatever the factors say */
    if (across < 1 || across > 2 || down < 1 || down > 2) return 0;
    image->across[i] = across, image->down[i] = down;
    if (across > most_across) most_across = across;
    if (down > most_down) most_down = down;
  }
  image->mcu_w = 8 * most_across, image->mcu_h = 8 * most_down;
  image->columns = (image->width + image->mcu_w - 1) / image->mcu_w;
  image->rows = (image->height + image->mcu_h - 1) / image->mcu_h;
  return image->height > 0 && image->width > 0;
}

static int read_scan(Image *image, const uint8_t *frame, const uint8_t *at, int size) {
  const int count = image->components;
  if (size != 4 + 2 * count || at[0] != count || at[1 + 2 * count] || at[2 + 2 * count] != 63 || at[3 + 2 * count]) return 0;
  for (int i = 0; i < count; i++) {
    if (at[1 + 2 * i] != frame[10 + 3 * i]) return 0; /* the order of the frame */
    image->dc[i] = at[2 + 2 * i] >> 4, image->ac[i] = at[2 + 2 * i] & 15;
    if (image->dc[i] > 3 || image->ac[i] > 3) return 0;
    if (!image->tables[0][image->dc[i]].used || !image->tables[1][image->ac[i]].used) return 0;
  }
  return 1;
}

static int is_index(const uint8_t *segment, Py_ssize_t length) {
  return length >= 4 + HEAD && segment[1] == OURS && !memcmp(segment + 4, NAME, sizeof NAME);
}

/* Whether it is a JPEG of one sequential scan with 8 bits, 1 or 3 components and at most twofold sampling. */
static int read_header(Image *image, const uint8_t *data, Py_ssize_t size) {
  image->data = data, image->size = size;
  image->frame = image->restarts = image->index_size = 0, image->index = NULL;
  for (int i = 0; i < 8; i++) image->tables[i / 4][i % 4].used = 0;
  if (size < 4 || data[0] != 0xFF || data[1] != SOI || data[size - 2] != 0xFF || data[size - 1] != EOI) return 0;
  Py_ssize_t at = 2;
  while (at + 4 <= size) {
    if (data[at] != 0xFF) return 0;
    const int marker = data[at + 1];
    if (marker == 0xFF) {
      at++;
      continue;
    }
    const int length = big(data + at + 2);
    const uint8_t *body = data + at + 4;
    if (length < 2 || at + 2 + length > size) return 0;
    if (marker == SOF0 || marker == SOF1) {
      if (image->frame || !read_frame(image, body, length - 2)) return 0;
      image->frame = at;
    } else if (marker == DHT) {
      if (!read_tables(image, body, length - 2)) return 0;
    } else if (marker == DRI) {
      if (length != 4) return 0;
      image->restarts = big(body);
    } else if (is_index(data + at, 2 + length)) {
      image->index = body, image->index_size = length - 2;
    } else if (marker == SOS) {
      if (!image->frame || !read_scan(image, data + image->frame, body, length - 2)) return 0;
      image->scan = at, image->start = at + 2 + length;
      return 1;
    } else if (marker != DQT && marker != COM && (marker & 0xF0) != APP0) {
      return 0;
    }
    at += 2 + length;
  }
  return 0;
}

/* ---- bits */

/* Copy coded bytes without the zeros behind 0xFF, until `wanted` bytes or a marker; returns how many, followed by zeros. */
static int64_t unstuffed(const uint8_t *from, const uint8_t *end, uint8_t *to, int64_t wanted) {
  uint8_t *out = to;
  while (from < end && out - to < wanted) {
    const uint8_t *stop = memchr(from, 0xFF, (size_t)(end - from));
    const int64_t plain = (stop ? stop : end) - from;
    memcpy(out, from, (size_t)plain);
    out += plain, from += plain;
    if (!stop || from + 1 >= end || from[1] != 0) break;
    *out++ = 0xFF, from += 2;
  }
  memset(out, 0, SLACK);
  return out - to;
}

static inline uint64_t peek(const uint8_t *bits, int64_t at) { /* 56 bits from a place on, at the top */
  uint64_t word;
  memcpy(&word, bits + (at >> 3), 8);
  return __builtin_bswap64(word) << (at & 7);
}

/* Read one symbol; -1 if there is none. */
static inline int symbol_of(const Table *t, uint64_t bits, int *length) {
  const int found = t->quick[bits >> (64 - QUICK)];
  if (found) {
    *length = found >> 8;
    return found & 255;
  }
  for (int size = QUICK + 1; size <= 16; size++) {
    const int32_t code = (int32_t)(bits >> (64 - size));
    if (code <= t->last[size]) {
      *length = size;
      return t->symbols[(code + t->first[size]) & 255];
    }
  }
  return -1;
}

static inline int extended(uint64_t bits, int size) { /* F.2.2.1, figure F.12 */
  if (!size) return 0;
  const int value = (int)(bits >> (64 - size));
  return value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

/* Pass the AC coefficients of a block; -1 where they are none. */
static inline int64_t past_ac(const Table *t, const uint8_t *bits, int64_t at) {
  for (int k = 1; k < 64;) {
    int length;
    const int symbol = symbol_of(t, peek(bits, at), &length), size = symbol & 15;
    if (symbol < 0) return -1;
    at += length + size;
    if (symbol == 0) return at;
    if (size == 0 && symbol != 0xF0) return -1;
    k += (symbol >> 4) + 1;
    if (k > 64) return -1;
  }
  return at;
}

typedef struct {
  uint8_t *to, *end;
  uint64_t held;
  int count; /* bits held, at the bottom: fewer than 8 between calls */
} Writer;

static inline void put(Writer *w, uint64_t value, int count) { /* at most 48 bits */
  w->held = w->held << count | value, w->count += count;
  while (w->count >= 8) {
    const uint8_t byte = (uint8_t)(w->held >> (w->count -= 8));
    *w->to++ = byte;
    if (byte == 0xFF) *w->to++ = 0;
  }
}

/* Copy bits [at, stop). */
static int copy_bits(Writer *w, const uint8_t *bits, int64_t at, int64_t stop) {
  if (w->end - w->to < (stop - at) / 4 + 64) return 0; /* even if every byte were 0xFF */
  for (; stop - at >= 48; at += 48) {
    const uint64_t some = peek(bits, at) >> 16;
    const uint64_t six = w->held << 48 | some; /* at most 7 + 48 bits */
    const uint64_t bytes = six >> w->count << 16;
    const uint64_t inverted = ~(bytes | 0xFFFF) ; /* a byte of 0xFF is zero here; the lowest two are zero too */
    const uint64_t zero = (inverted - 0x0101010101010101ULL) & ~inverted & 0x8080808080800000ULL;
    if (zero) {
      put(w, some, 48);
      continue;
    }
    const uint64_t swapped = __builtin_bswap64(bytes);
    memcpy(w->to, &swapped, 8);
    w->to += 6, w->held = six & ((1ULL << w->count) - 1);
  }
  if (stop > at) put(w, peek(bits, at) >> (64 - (stop - at)), (int)(stop - at));
  return 1;
}

static void finish(Writer *w) {
  if (w->count) put(w, (1u << (8 - w->count)) - 1, 8 - w->count);
  w->held = 0;
}

static uint8_t *copied(uint8_t *to, const uint8_t *from, Py_ssize_t size) {
  memcpy(to, from, (size_t)size);
  return to + size;
}

/* ---- the index */

static PyObject *index_of(PyObject *self, PyObject *args) { /* a JPEG, k: the JPEG with its index, or None */
  Py_buffer view;
  int k;
  if (!PyArg_ParseTuple(args, "y*i", &view, &k)) return NULL;
  Image *image = PyMem_Malloc(sizeof *image);
  uint8_t *bits = PyMem_Malloc((size_t)view.len + SLACK), *segment = PyMem_Malloc(65536);
  int size = 0;
  if (image && bits && segment && k >= 1) {
    Py_BEGIN_ALLOW_THREADS
    if (read_header(image, view.buf, view.len) && !image->restarts) {
      while (k < image->columns && (int64_t)image->rows * ((image->columns + k - 1) / k) * ENTRY > MOST) k *= 2;
      const int groups = (image->columns + k - 1) / k;
      int ok = (int64_t)image->rows * groups * ENTRY <= MOST && image->rows * groups > 1 && k < 65536;
      const int64_t total = ok ? 8 * unstuffed(image->data + image->start, image->data + view.len, bits, view.len) : 0;
      int64_t at = 0;
      int before[3] = {0, 0, 0};
      uint8_t *entry = segment + 4 + HEAD;
      for (int row = 0; ok && row < image->rows; row++) {
        for (int group = 0; ok && group < groups; group++, entry += ENTRY) {
          const int64_t begin = at;
          for (int c = 0; c < 3; c++) {
            entry[2 + 2 * c] = (uint8_t)before[c], entry[3 + 2 * c] = (uint8_t)(before[c] >> 8);
          }
          const int last = (group + 1) * k < image->columns ? (group + 1) * k : image->columns;
          for (int mcu = group * k; ok && mcu < last; mcu++)
            for (int c = 0; ok && c < image->components; c++)
              for (int b = image->across[c] * image->down[c]; ok && b; b--) {
                int length;
                const uint64_t next = peek(bits, at);
                const int category = symbol_of(&image->tables[0][image->dc[c]], next, &length);
                if (category < 0 || at > total) {
                  ok = 0;
                  break;
                }
                before[c] += extended(next << length, category);
                at = past_ac(&image->tables[1][image->ac[c]], bits, at + length + category);
                ok = at >= 0 && at <= total && before[c] >= -32768 && before[c] <= 32767;
              }
          ok = ok && at - begin < 65536;
          entry[0] = (uint8_t)(at - begin), entry[1] = (uint8_t)((at - begin) >> 8);
        }
      }
      if (ok && total - at < 8) { /* what is left fills the last byte */
        size = (int)(entry - segment);
        segment[0] = 0xFF, segment[1] = OURS, segment[2] = (uint8_t)((size - 2) >> 8), segment[3] = (uint8_t)(size - 2);
        memcpy(segment + 4, NAME, 8);
        segment[12] = (uint8_t)k, segment[13] = (uint8_t)(k >> 8), segment[14] = segment[15] = 0;
      }
    }
    Py_END_ALLOW_THREADS
  }
  PyObject *out = NULL;
  if (!image || !bits || !segment) {
    PyErr_NoMemory();
  } else if (!size && !image->index) {
    out = Py_NewRef(Py_None);
  } else if ((out = PyBytes_FromStringAndSize(NULL, view.len + size)) != NULL) { /* another one's index stays out */
    const uint8_t *data = view.buf;
    uint8_t *const begun = (uint8_t *)PyBytes_AsString(out), *to = copied(begun, data, 2);
    for (Py_ssize_t at = 2; at < image->scan;) {
      const Py_ssize_t length = data[at + 1] == 0xFF ? 1 : 2 + big(data + at + 2);
      if (!is_index(data + at, length)) to = copied(to, data + at, length);
      at += length;
    }
    to = copied(to, segment, size);
    to = copied(to, data + image->scan, view.len - image->scan);
    PyObject *whole = out;
    if (to - begun < view.len + size) {
      out = PyBytes_FromStringAndSize((const char *)begun, to - begun);
      Py_DECREF(whole);
    }
  }
  PyMem_Free(image), PyMem_Free(bits), PyMem_Free(segment);
  PyBuffer_Release(&view);
  return out;
}

/* ---- the cut */

static inline int dc_of(const uint8_t *entry, int c) { return (int16_t)(entry[2 + 2 * c] | entry[3 + 2 * c] << 8); }

/* Write a row's first MCU. Its DC values are those `before` it and its own differences, less those of the last MCU that
   was written (an entry's again; NULL: none was); where it ends, or -1. */
static int64_t first_mcu(
    const Image *image, Writer *w, const uint8_t *bits, int64_t at, int64_t stop, const uint8_t *before, const uint8_t *written) {
  for (int c = 0; c < image->components; c++) {
    const Table *dc = &image->tables[0][image->dc[c]], *ac = &image->tables[1][image->ac[c]];
    for (int b = 0; b < image->across[c] * image->down[c]; b++) {
      int length;
      const int64_t begin = at;
      const uint64_t next = peek(bits, at);
      const int category = symbol_of(dc, next, &length);
      if (category < 0) return -1;
      at += length + category;
      if (b == 0) {
        const int value = extended(next << length, category) + dc_of(before, c) - (written ? dc_of(written, c) : 0);
        const int size = value ? 32 - __builtin_clz((unsigned)(value < 0 ? -value : value)) : 0;
        if (size > 11 || !dc->lengths[size]) return -1;
        put(w, dc->codes[size], dc->lengths[size]);
        if (size) put(w, (uint64_t)(value < 0 ? value + (1 << size) - 1 : value), size);
      }
      const int64_t end = past_ac(ac, bits, at);
      if (end < 0 || end > stop || !copy_bits(w, bits, b == 0 ? at : begin, end)) return -1;
      at = end;
    }
  }
  return at;
}

/* Write the JPEG of the MCUs around a box into `out`; its bytes, or 0. The box is moved into it. */
static Py_ssize_t cut_one(Image *image, const uint8_t *data, Py_ssize_t size, int32_t *box, uint8_t *out, Py_ssize_t room) {
  if (!read_header(image, data, size) || !image->index || image->restarts || room < 3 * size + 4096 + PAD) return 0;
  const int top = box[0], left = box[1], bottom = top + box[2], right = left + box[3];
  if (top < 0 || left < 0 || box[2] < 1 || box[3] < 1 || bottom > image->height || right > image->width) return 0;
  const int k = image->index[8] | image->index[9] << 8, w = image->mcu_w, h = image->mcu_h;
  if (!k) return 0;
  const int groups = (image->columns + k - 1) / k;
  if ((int64_t)image->index_size != HEAD + (int64_t)ENTRY * image->rows * groups) return 0;
  const int row = (top > MARGIN ? top - MARGIN : 0) / h, group = (left > MARGIN ? left - MARGIN : 0) / (k * w);
  int rows = (bottom + MARGIN + h - 1) / h, last = (right + MARGIN + k * w - 1) / (k * w);
  if (rows > image->rows) rows = image->rows;
  if (last > groups) last = groups;
  if (row == 0 && group == 0 && last == groups) return 0; /* nothing is left out that is not skipped anyway */

  const uint8_t *entry = image->index + HEAD;
  int64_t end = 0, begin = 0;
  for (int i = 0; i < rows * groups; i++) {
    if (i < row * groups + group) begin += entry[ENTRY * i] | entry[ENTRY * i + 1] << 8;
    end += entry[ENTRY * i] | entry[ENTRY * i + 1] << 8;
  }
  uint8_t *bits = out + room - PAD - size - SLACK; /* the end of the room; what is written comes from its beginning */
  if (8 * unstuffed(data + image->start, data + size, bits, end / 8 + 1) < end) return 0;

  const int from_x = group * k * w, to_x = last * k * w < image->width ? last * k * w : image->width;
  const int from_y = row * h, to_y = rows * h < image->height ? rows * h : image->height;
  uint8_t *to = copied(out, data, 2);
  for (Py_ssize_t at = 2; at <= image->scan;) { /* what decides pixels; no comments, profiles or pictures */
    if (data[at + 1] == 0xFF) {
      at++;
      continue;
    }
    const int marker = data[at + 1], length = 2 + big(data + at + 2);
    if (marker == APP0 || marker == ADOBE || (marker & 0xF0) != APP0) {
      uint8_t *begun = to;
      if (marker != COM) to = copied(to, data + at, length);
      if (at == image->frame) {
        begun[5] = (uint8_t)((to_y - from_y) >> 8), begun[6] = (uint8_t)(to_y - from_y);
        begun[7] = (uint8_t)((to_x - from_x) >> 8), begun[8] = (uint8_t)(to_x - from_x);
      }
    }
    at += length;
  }
  Writer writer = {.to = to, .end = bits};
  for (int r = row; r < rows; r++) {
    const uint8_t *first = entry + (Py_ssize_t)ENTRY * (r * groups + group);
    const uint8_t *written = r == row ? NULL : entry + (Py_ssize_t)ENTRY * ((r - 1) * groups + last);
    int64_t stop = begin, next = begin;
    for (int g = group; g < group + groups && r * groups + g < image->rows * groups; g++) {
      const int bits_of = entry[(Py_ssize_t)ENTRY * (r * groups + g)] | entry[(Py_ssize_t)ENTRY * (r * groups + g) + 1] << 8;
      if (g < last) stop += bits_of;
      next += bits_of;
    }
    if (writer.end - writer.to < 256) return 0;
    const int64_t at = first_mcu(image, &writer, bits, begin, stop, first, written);
    if (at < 0 || !copy_bits(&writer, bits, at, stop)) return 0;
    begin = next;
  }
  finish(&writer);
  *writer.to++ = 0xFF, *writer.to++ = EOI;
  memset(writer.to, 0, PAD), writer.to += PAD;
  box[0] -= from_y, box[1] -= from_x;
  return writer.to - out;
}

/* addresses [B] u64, lengths [B] i64, boxes [B, 4] i32 are changed in place; scratch u8; places in it [B + 1] i64;
   ours [B] u8: whose index is of our own making */
static PyObject *cut(PyObject *self, PyObject *args) {
  Py_buffer v[6];
  if (!PyArg_ParseTuple(args, "w*w*w*w*y*y*", v, v + 1, v + 2, v + 3, v + 4, v + 5)) return NULL;
  const Py_ssize_t count = v[0].len / 8;
  const int64_t *places = v[4].buf;
  const uint8_t *ours = v[5].buf;
  const int agreed = v[1].len == 8 * count && v[2].len == 16 * count && v[4].len == 8 * (count + 1) &&
                     v[5].len == count && places[count] <= v[3].len;
  Image *image = PyMem_Malloc(sizeof *image);
  Py_ssize_t done = 0;
  if (agreed && image) {
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
      if (!ours[i]) continue;
      uint64_t *address = (uint64_t *)v[0].buf + i;
      int64_t *length = (int64_t *)v[1].buf + i;
      uint8_t *out = (uint8_t *)v[3].buf + places[i];
      const uint8_t *data = (const uint8_t *)(uintptr_t)*address;
      const Py_ssize_t made = cut_one(image, data, *length, (int32_t *)v[2].buf + 4 * i, out, places[i + 1] - places[i]);
      if (made) *address = (uint64_t)(uintptr_t)out, *length = made, done++;
    }
    Py_END_ALLOW_THREADS
  }
  for (int i = 0; i < 6; i++) PyBuffer_Release(v + i);
  const int out_of_memory = !image;
  PyMem_Free(image);
  if (out_of_memory) return PyErr_NoMemory();
  if (agreed) return PyLong_FromSsize_t(done);
  PyErr_SetString(PyExc_ValueError, "the arrays differ in length, or the scratch is too small");
  return NULL;
}

static PyMethodDef methods[] = {
    {"index", index_of, METH_VARARGS, "A baseline JPEG with an index of every k-th MCU in it; None if it can have none."},
    {"cut", cut, METH_VARARGS, "Replace JPEGs that have an index by smaller ones around their boxes; how many."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_entropy", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__entropy(void) {
  PyObject *made = PyModule_Create(&module);
  if (made && PyModule_AddIntConstant(made, "PAD", PAD)) Py_CLEAR(made);
  return made;
}
