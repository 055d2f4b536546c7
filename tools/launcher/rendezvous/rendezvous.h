#ifndef WEFT_TOOLS_LAUNCHER_RENDEZVOUS_RENDEZVOUS_H_
#define WEFT_TOOLS_LAUNCHER_RENDEZVOUS_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "tools/launcher/rendezvous/generation.h"

namespace weft {

// How the launchers of a job's nodes agree: on the members of each generation and their ranks, and on when
// and why it ended. One object a node.
//
// Threads: one; another may call Done and Publish meanwhile, but not during Next and Leave. End and event_fd: any.
// Errors:  Aborted when the place where the nodes meet is gone.
class Rendezvous {
 public:
  // Whether the workers of a generation have said that they had saved all that they need to go on.
  using HasSaved = std::function<bool(int64_t generation)>;

  virtual ~Rendezvous() = default;

  // Takes part in the next generation, once enough nodes are there; the one before must have ended. This one
  // may have ended too by the time of the return: other nodes are faster. A node that takes part no more, but keeps the
  // store, waits until the job is over and returns its last generation, which has ended.
  // Returns nullopt if `cancelled`, which is called every now and then, became true.
  // Errors: DeadlineExceeded if too few nodes come; Aborted if the job is over; InvalidArgument if this node
  //         does not fit the others.
  virtual std::optional<Assignment> Next(const std::function<bool()>& cancelled) = 0;

  // This node's workers of the generation have all exited with 0. When those of all nodes have, it is over.
  virtual void Done() = 0;

  // Ends the generation, unless it has ended. `end.restart` says whether a restart would make sense; it is
  // refused if none is left since the last generation that had saved. Nodes that join or leave use none up.
  // Returns how it ended: the first end that any node published.
  virtual GenerationEnd Publish(GenerationEnd end) = 0;

  // How the generation ended, if it has.
  virtual std::optional<GenerationEnd> End() = 0;

  // A file that polls as readable when End() has news; -1 if there never are any but from this node.
  virtual int event_fd() const = 0;

  // This node takes part no more. Returns when the others do not need it any longer, in a few seconds at
  // most.
  virtual void Leave() = 0;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_RENDEZVOUS_RENDEZVOUS_H_
