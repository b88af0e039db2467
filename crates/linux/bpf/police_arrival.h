/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The input and the result of a policer. */
#pragma once

/* The last is not a verdict: the window is over. A packet without a verdict passes and is not
 * counted as a subscriber's. */
enum verdict { VERDICT_PASS, VERDICT_MARK, VERDICT_DROP, VERDICT_ROLL };

/* Who pays for a packet of a bundle's free class: its own queue, a stunt, or no queue. */
enum payer { PAYER_ITSELF, PAYER_STUNT, PAYER_NONE };

/* A packet that the policer decides about. */
struct arrival {
	__u64 now; /* ns */
	__u32 size; /* bytes */
	__u32 leaf;
	__u32 flow; /* a hash, whose high bits have chosen the leaf; of a class with one leaf it is 0 */
	__u32 place; /* see police_leaf.h */
	__u8 can_be_marked;
	__u8 aimed; /* of a packet of a free class: what its target says, */
	__u8 payer; /* and who pays */
	__u8 choice; /* the class that the packet belongs to */
	__u8 sent; /* what its flow sends with it, 2^sent_shift bytes */
	__u8 lane; /* of its flow in the leaf, from 1 on; 0 has none */
	__u8 is_spared; /* from a full leaf, since its flow is thin */
	__u8 pad;
};

/*
 * True at each turn of a loop, so that the verifier knows that the loop ends (may_goto, Linux 6.9 or later): false
 * after some millions of turns. Encoded as a number, since older assemblers do not know the instruction.
 */
#define can_loop                                                                               \
	({                                                                                     \
		__label__ out, end;                                                            \
		int more = 1;                                                                  \
                                                                                               \
		asm goto("1: .byte 0xe5; .byte 0; .long ((%l[out] - 1b - 8) / 8) & 0xffff; .short 0" : \
			 :                                                                     \
			 :                                                                     \
			 : out);                                                               \
		goto end;                                                                      \
	out:                                                                                   \
		more = 0;                                                                      \
	end:                                                                                   \
		more;                                                                          \
	})
