#ifndef WEFT_DTENSOR_INSPECT_COMM_REPORT_H_
#define WEFT_DTENSOR_INSPECT_COMM_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/context/mesh_context.h"
#include "runtime/comm/ledger.h"

namespace weft {

// Collectives of one kind, over one group of axes, for one purpose, from one module.
struct CommRow {
  std::string kind;     // "all_reduce", ...
  std::string axes;     // "dp", "dp.tp"
  std::string purpose;  // PurposeName
  std::string
      path;  // of the module; of gradients of several their bucket; empty for the root and the optimizer
  int64_t calls = 0;      // of one group: as many as every member made
  int64_t num_bytes = 0;  // what members lacked, summed over all groups of the mesh

  bool operator==(const CommRow&) const = default;
};

// The communication of one rank, or of all ranks together. A value, ordered by kind, axes, purpose and path.
struct CommReport {
  std::vector<CommRow> rows;

  bool operator==(const CommReport&) const = default;
  int64_t TotalBytes() const;
  int64_t BytesFor(Purpose purpose) const;
  // A table with a line of totals.
  std::string ToTable() const;
};

// What the ledger of this rank holds: bytes are recorded by the first member of each group only.
CommReport LocalCommReport(RankState& state);

// The sum over the ranks of the mesh: what moved since the ledgers were cleared. Every rank calls it alike
// and gets the same report.
// Cost:   two all-gathers of text over all axes, which are not in the report.
CommReport CollectCommReport(MeshContext& context);

}  // namespace weft

#endif  // WEFT_DTENSOR_INSPECT_COMM_REPORT_H_
