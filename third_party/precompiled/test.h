// What most sources of tests read of the system's headers, beside library.h.

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
