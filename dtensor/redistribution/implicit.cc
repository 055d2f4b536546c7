#include "dtensor/redistribution/implicit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/redistribution/redistribute.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/price.h"
#include "runtime/base/error.h"

namespace weft {

void ImplicitMoves::Add(std::string what, const TensorType& type, const Layout& from, const Layout& to) {
  if (from == to) return;
  // Of the plan that the move then finds in the cache: to plan it here would take longer than the rest of a cached call.
  const int64_t num_bytes = TotalBytes(LowerCached(context_, type, from, to)->plan, type, context_.mesh());
  if (num_bytes == 0) return;
  num_bytes_ += num_bytes;
  moves_.push_back({std::move(what), type, from, to});
}

void ImplicitMoves::Add(std::string text, int64_t num_bytes) {
  if (num_bytes == 0) return;
  num_bytes_ += num_bytes;
  others_.push_back(std::move(text));
}

std::string ImplicitMoves::Text() const {
  std::string text;
  for (const Move& move : moves_) {
    const RedistributionPrice price =
        PriceRedistribution(move.from, move.to, move.type, context_.mesh(), context_.cost_model());
    absl::StrAppend(&text, text.empty() ? "" : ", ", move.what, " ", move.type.ToString(), " would move ",
                    move.from.ToString(context_.mesh()), " -> ", move.to.ToString(context_.mesh()), " by ",
                    price.steps, ": ", price.num_bytes, " bytes, ",
                    absl::StrFormat("%.1f us", price.microseconds));
  }
  for (const std::string& other : others_) absl::StrAppend(&text, text.empty() ? "" : ", ", other);
  return text;
}

void ImplicitMoves::Check(absl::string_view name, const std::function<std::string()>& call,
                          const std::function<std::string()>& nearest) const {
  if (num_bytes_ == 0) return;
  RankState& state = context_.state();
  ImplicitRedistributionGuard* const innermost = state.implicit_guard();
  const std::string& path = state.PathName(state.path_id());
  const auto message = [&](absl::string_view why) {
    std::string legal = nearest();
    return absl::StrCat(call(), path.empty() ? "" : absl::StrCat(" in module ", path), ": ", why, "; ",
                        Text(), legal.empty() ? "" : "; ", legal);
  };
  if (innermost->mode_ == ImplicitRedistribution::kForbid) {
    Throw(absl::StatusCode::kFailedPrecondition,
          message("implicit redistribution is forbidden here, Redistribute first"));
  }
  for (const ImplicitRedistributionGuard* guard = innermost; guard != nullptr; guard = guard->outer_) {
    if (!guard->max_bytes_.has_value() || guard->num_bytes_ + num_bytes_ <= *guard->max_bytes_) continue;
    Throw(absl::StatusCode::kFailedPrecondition,
          message(absl::StrCat("implicit redistributions here may move ", *guard->max_bytes_, " bytes, ",
                               guard->num_bytes_, " have moved and these are ", num_bytes_, " more")));
  }
  if (innermost->mode_ == ImplicitRedistribution::kWarn &&
      state.FirstWarning(absl::StrCat(path, "\n", name))) {
    context_.Warn(message("implicit redistribution"));
  }
  for (ImplicitRedistributionGuard* guard = innermost; guard != nullptr; guard = guard->outer_) {
    guard->num_bytes_ += num_bytes_;
  }
}

}  // namespace weft
