// The styles that plans are written with, one per file.

#ifndef WEFT_PARALLEL_STYLES_H_
#define WEFT_PARALLEL_STYLES_H_

#include "parallel/styles/column_parallel.h"
#include "parallel/styles/communication.h"
#include "parallel/styles/data_parallel.h"
#include "parallel/styles/fully_shard.h"
#include "parallel/styles/ignore.h"
#include "parallel/styles/offload.h"
#include "parallel/styles/on.h"
#include "parallel/styles/pipeline.h"
#include "parallel/styles/precision.h"
#include "parallel/styles/prepare.h"
#include "parallel/styles/recompute.h"
#include "parallel/styles/row_parallel.h"
#include "parallel/styles/sequence_parallel.h"
#include "parallel/styles/vocab_parallel.h"

#endif  // WEFT_PARALLEL_STYLES_H_
