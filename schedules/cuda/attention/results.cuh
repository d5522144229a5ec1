// Rows of results as they are stored: `finish` gives what becomes of two sums.
// Stands in a namespace that has defined HEAD, the type Out, and `finish`.

template <class T> DEV void store_two(T* to, float x, float y, const Operands& operands) {
  const auto both = finish(make_float2(x, y), operands);
  if constexpr (sizeof(T) == 1) store_pair(to, both.x, both.y);
  else store_pair<T>(to, both.x, both.y);
}

// `sums` has columns i * 8 + (lane & 3) * 2 and the next at i * 4, i * 4 + 1. A row that is not there has no `to`.
template <class T> DEV void store_row(T* to, const float* sums, float by, int lane, const Operands& operands) {
  constexpr int WHOLE = sizeof(T) <= 2 ? HEAD / 32 : 0;
  const int quad = lane & 3;
#pragma unroll
  for (int g = 0; g < WHOLE; g++) {  // a quad exchanges its fragments, so that every thread stores 16 bytes, or 8
    auto part = [&](int i) { return finish(make_float2(sums[(g * 4 + i) * 4] * by, sums[(g * 4 + i) * 4 + 1] * by), operands); };
    if constexpr (sizeof(T) == 1) {
      const uint2 whole = turned(pack_bytes(part(0), part(1)), pack_bytes(part(2), part(3)));
      if (to) *(uint2*)(to + g * 32 + quad * 8) = whole;
    } else {
      uint32_t parts[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 both = part(i);
        parts[i] = pack<T>(both.x, both.y);
      }
      gather_rows(parts, lane);
      if (to) *(uint4*)(to + g * 32 + quad * 8) = make_uint4(parts[0], parts[1], parts[2], parts[3]);
    }
  }
#pragma unroll
  for (int i = WHOLE * 4; i < HEAD / 8; i++)
    if (to) store_two<T>(to + i * 8 + quad * 2, sums[i * 4] * by, sums[i * 4 + 1] * by, operands);
}
