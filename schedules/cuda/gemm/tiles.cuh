struct Tile { int m, n, b; };

// Tiles in groups of GROUP rows, so that those in flight share operands in L2.
template <int ROWS, int COLUMNS, int GROUP> DEV Tile tile_of(int t) {
  constexpr int each = ROWS * COLUMNS;
  int b = t / each, in = t - b * each, group = in / (GROUP * COLUMNS), first = group * GROUP;
  int rows = min(ROWS - first, GROUP), w = in - group * GROUP * COLUMNS;
  return {first + w % rows, w / rows, b};
}

