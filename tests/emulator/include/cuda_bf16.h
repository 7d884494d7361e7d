// Stands in for the toolkit's header when a kernel is compiled for the host.
#pragma once
#include "../cuda_emu.h"
