#include "tools/launcher/rendezvous/single_node_rendezvous.h"

#include <utility>

#include "runtime/base/error.h"

namespace weft {

SingleNodeRendezvous::SingleNodeRendezvous(int num_workers, int max_restarts, std::string master_addr,
                                           int master_port, HasSaved has_saved)
    : max_restarts_(max_restarts), has_saved_(std::move(has_saved)) {
  next_.world_size = num_workers;
  next_.master_addr = std::move(master_addr);
  next_.master_port = master_port;
}

std::optional<Assignment> SingleNodeRendezvous::Next(const std::function<bool()>& cancelled) {
  if (cancelled()) return std::nullopt;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (end_) {
    WEFT_CHECK(end_->restart, "the job is over: ", end_->headline);
    ++next_.generation;
    next_.restarts = (end_->saved ? 0 : next_.restarts) + 1;
    end_.reset();
  }
  return next_;
}

void SingleNodeRendezvous::Done() { Publish({.kind = GenerationEnd::Kind::kFinished}); }

std::optional<GenerationEnd> SingleNodeRendezvous::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

GenerationEnd SingleNodeRendezvous::Publish(GenerationEnd end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (end_) return *end_;
  end.saved = has_saved_ && has_saved_(next_.generation);
  end.restart = end.restart && (end.saved ? 0 : next_.restarts) < max_restarts_;
  end_ = std::move(end);
  return *end_;
}

}  // namespace weft
