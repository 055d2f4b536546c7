#ifndef WEFT_TOOLS_LAUNCHER_RENDEZVOUS_SINGLE_NODE_RENDEZVOUS_H_
#define WEFT_TOOLS_LAUNCHER_RENDEZVOUS_SINGLE_NODE_RENDEZVOUS_H_

#include <mutex>
#include <string>

#include "tools/launcher/rendezvous/rendezvous.h"

namespace weft {

// One node, which agrees with itself.
class SingleNodeRendezvous final : public Rendezvous {
 public:
  // `has_saved`: empty for never.
  SingleNodeRendezvous(int num_workers, int max_restarts, std::string master_addr, int master_port,
                       HasSaved has_saved = {});

  std::optional<Assignment> Next(const std::function<bool()>& cancelled) override;
  void Done() override;
  GenerationEnd Publish(GenerationEnd end) override;
  std::optional<GenerationEnd> End() override;
  int event_fd() const override { return -1; }
  void Leave() override {}

 private:
  Assignment next_;
  int max_restarts_;
  HasSaved has_saved_;
  std::mutex mutex_;  // of what follows
  std::optional<GenerationEnd> end_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_RENDEZVOUS_SINGLE_NODE_RENDEZVOUS_H_
