// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The structures that user space knows, too. The build makes the Rust structures from the type
 * information of this file, which is never loaded; structures nested in them are included.
 */
#include <linux/bpf.h>

#include "abi.h"
#include "admit_abi.h"
#include "binding_abi.h"
#include "police_abi.h"
#include "router_abi.h"
#include "sender_abi.h"

#define SHARED(NAME) struct NAME shared_##NAME

SHARED(admit_client);

SHARED(config);
SHARED(counters);
SHARED(upload_counters);
SHARED(allowances);
SHARED(marks);
SHARED(bindings);
SHARED(prefix4);
SHARED(prefix6);
SHARED(talker);
SHARED(initial_windows);
SHARED(connection_record);
SHARED(flow);
SHARED(heard_header);

SHARED(router_config);
SHARED(router_counters);
SHARED(router_flow);
SHARED(leaf_key);
SHARED(dhcp_heard);

SHARED(police_entry);
SHARED(police_prefixes);
SHARED(police_plan);
SHARED(police_member);
SHARED(police_segment);
SHARED(police_slot_1);
SHARED(police_slot_4);
SHARED(police_slot_16);
SHARED(police_slot_64);
SHARED(police_slot_bundle);
SHARED(police_client);
SHARED(police_tally);
SHARED(police_totals);
SHARED(police_settings);
SHARED(bench);

SHARED(order);
SHARED(bundle_order);
SHARED(bundle_state);
SHARED(member);
SHARED(place);
SHARED(role_record);
SHARED(replay);
