/* The header of a message inside a batch, in its usual shape. */

#ifndef ANABRANCH_HEADERS_H
#define ANABRANCH_HEADERS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define KEY_TAG 0x12
#define SIZE_TAG 0x18
#define EVENT_TIME_TAG 0x28
#define SEQUENCE_TAG 0x40

#define MESSAGE_BYTES_MIN 8

typedef struct {
    const unsigned char *start, *key;
    Py_ssize_t key_size;  /* -1 without a key. */
    int64_t value_size, event_time;
} Header;

/* Read a number of at most eight bytes; returns the byte behind it, or NULL. */
static inline const unsigned char *
read_varint(const unsigned char *at, const unsigned char *stop, int64_t *number)
{
    *number = 0;
    for (int shift = 0; shift < 56 && at < stop; shift += 7) {
        *number |= (int64_t)(*at & 0x7f) << shift;
        if (*at++ < 0x80)
            return at;
    }
    return NULL;
}

/* Read the header of the message at `at`, if it has the usual shape: an optional key of less than 128 bytes, the
   size of the value, an optional event time, and a sequence id. Returns the start of the value, which lies before
   `end` with all of its bytes, or NULL. */
static inline const unsigned char *
read_header(const unsigned char *at, const unsigned char *end, Header *header)
{
    if (end - at < MESSAGE_BYTES_MIN || at[0] || at[1] || at[2] || at[3] > end - at - 4)
        return NULL;
    const unsigned char *stop = at + 4 + at[3];
    int64_t sequence;
    header->start = at += 4;
    header->key = at;
    header->key_size = -1;
    header->event_time = 0;
    if (stop - at >= 2 && *at == KEY_TAG) {
        if (at[1] >= 0x80 || at[1] > stop - at - 2)
            return NULL;
        header->key = at + 2;
        header->key_size = at[1];
        at += 2 + at[1];
    }
    if (at >= stop || *at++ != SIZE_TAG || (at = read_varint(at, stop, &header->value_size)) == NULL)
        return NULL;
    if (at < stop && *at == EVENT_TIME_TAG && (at = read_varint(at + 1, stop, &header->event_time)) == NULL)
        return NULL;
    if (at >= stop || *at++ != SEQUENCE_TAG || read_varint(at, stop, &sequence) != stop)
        return NULL;
    return header->value_size > end - stop ? NULL : stop;
}

static inline Py_ssize_t
varint_length(uint64_t number)
{
    Py_ssize_t length = 1;
    while (number >= 0x80) {
        number >>= 7;
        length++;
    }
    return length;
}

static inline unsigned char *
write_varint(unsigned char *at, uint64_t number)
{
    while (number >= 0x80) {
        *at++ = (unsigned char)(number | 0x80);
        number >>= 7;
    }
    *at++ = (unsigned char)number;
    return at;
}

#endif
