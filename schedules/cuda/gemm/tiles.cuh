struct Tile { int m, n, b; };

// Tiles in groups of GROUP rows, so that those in flight share operands in L2.
template <int COLUMNS, int GROUP> DEV Tile tile_of(int t, int of_rows) {
  const int each = of_rows * COLUMNS;
  int b = t / each, in = t - b * each, group = in / (GROUP * COLUMNS), first = group * GROUP;
  int rows = min(of_rows - first, GROUP), w = in - group * GROUP * COLUMNS;
  return {first + w % rows, w / rows, b};
}

