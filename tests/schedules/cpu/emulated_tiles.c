/* AMX's tile instructions by the manual's pseudocode, for CPUs without them: rows of 64 bytes, eight registers a thread. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint8_t palette, start, zero[14]; uint16_t bytes[16]; uint8_t rows[16]; } Configuration;
static _Thread_local Configuration now;
static _Thread_local uint8_t tiles[8][16][64];

static void must(int holds) { if (!holds) abort(); } /* where the CPU would raise #UD */
void emulated_ldtilecfg(const void* from) { memcpy(&now, from, sizeof now); memset(tiles, 0, sizeof tiles); must(now.palette == 1); }
void emulated_tilerelease(void) { memset(&now, 0, sizeof now); }
void emulated_tilezero(uint8_t t) { must(now.palette && now.rows[t]); memset(tiles[t], 0, sizeof tiles[t]); }
void emulated_tileloaddt164(uint8_t t, const uint8_t* from, int64_t step) {
  emulated_tilezero(t);
  for (int row = 0; row < now.rows[t]; row++) memcpy(tiles[t][row], from + row * step, now.bytes[t]);
}
void emulated_tileloadd64(uint8_t t, const uint8_t* from, int64_t step) { emulated_tileloaddt164(t, from, step); }
void emulated_tilestored64(uint8_t t, uint8_t* to, int64_t step) {
  must(now.palette && now.rows[t]);
  for (int row = 0; row < now.rows[t]; row++) memcpy(to + row * step, tiles[t][row], now.bytes[t]);
}
static float widened(uint16_t bits) { uint32_t all = (uint32_t)bits << 16; float value; memcpy(&value, &all, 4); return value; }
#define FIT(c, a, b) must(now.palette && now.rows[c] == now.rows[a] && now.bytes[c] == now.bytes[b] && now.bytes[a] == 4 * now.rows[b])
void emulated_tdpbf16ps(uint8_t c, uint8_t a, uint8_t b) {
  FIT(c, a, b);
  for (int m = 0; m < now.rows[c]; m++)
    for (int k = 0; k < 2 * now.rows[b]; k++)
      for (int n = 0; n < now.bytes[c] / 4; n++)
        ((float*)tiles[c][m])[n] += widened(((uint16_t*)tiles[a][m])[k]) * widened(((uint16_t*)tiles[b][k / 2])[2 * n + k % 2]);
}
#define BYTES(name, left)                                                                        \
  void name(uint8_t c, uint8_t a, uint8_t b) {                                                   \
    FIT(c, a, b);                                                                                \
    for (int m = 0; m < now.rows[c]; m++)                                                        \
      for (int k = 0; k < 4 * now.rows[b]; k++)                                                  \
        for (int n = 0; n < now.bytes[c] / 4; n++)                                               \
          ((int32_t*)tiles[c][m])[n] += ((left*)tiles[a][m])[k] * ((int8_t*)tiles[b][k / 4])[4 * n + k % 4]; \
  }
BYTES(emulated_tdpbusd, uint8_t)
BYTES(emulated_tdpbssd, int8_t)

/* Workspaces that end at a page which nobody may touch, full of NaN, and are not returned. */
#include <sys/mman.h>
void* guarded_workspace(int device, int id, uint64_t size, int code, int bits) {
  uint64_t whole = (size + 63) / 64 * 64, pages = (whole + 4095) / 4096 * 4096;
  char* at = mmap(0, pages + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(at != MAP_FAILED && !mprotect(at + pages, 4096, PROT_NONE));
  memset(at, 0xff, pages);
  return at + pages - whole;
}
int kept_workspace(int device, int id, void* workspace) { return 0; }
