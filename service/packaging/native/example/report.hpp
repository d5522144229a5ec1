// What relaxc-run prints of a run: facts of each output, and times.
#pragma once
#include <vector>

#include <relaxc/runtime.hpp>

struct Times {
  double load_s, first_s;
  std::vector<double> run_s;
};

void print_json(const relaxc::Session& session, const Times& times, const relaxc::Result& result);

void print_text(const relaxc::Session& session, const Times& times, const relaxc::Result& result);
