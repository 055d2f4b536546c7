#ifndef WEFT_RUNTIME_LAUNCH_WORLD_PLACE_H_
#define WEFT_RUNTIME_LAUNCH_WORLD_PLACE_H_

#include <chrono>
#include <string>

namespace weft {

// A rank's place in a world, and where its ranks meet.
struct WorldPlace {
  int rank = 0;
  int size = 1;
  // "tcp://HOST:PORT": rank 0 listens there. "file:///PATH": rank 0 makes that file, which all ranks see, listens on a port of
  // its own and says in the file where; it removes the file when all have come.
  std::string address = {};
  std::string token = {};  // tcp: what ranks must show, the same for all; a file has one of its own making
  // Which of several worlds that meet at one place, the same number on all ranks: needed where a world is made anew after
  // one that failed, whose ranks may not have ended it all.
  int generation = 0;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // for all ranks to come
};

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_WORLD_PLACE_H_
