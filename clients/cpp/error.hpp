// An error message of one line: what was given, what is wrong, what to do.
#pragma once

#include <stdexcept>

namespace skylane {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace skylane
