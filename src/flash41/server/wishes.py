"""From what a job describes to what the engine calls: a watcher for stop strings.

Without stop strings nothing in the text ends an answer, and it need not be read beside the one who sends it.
"""

from flash41.chat.conversation import ChatCodec, Conversation
from flash41.chat.stops import TextWatcher
from flash41.chat.watching import ChatWatcher
from flash41.engine.request import StopWatcher
from flash41.server.service import ConversationWish, Job


def converted(wish: ConversationWish, codec: ChatCodec) -> Conversation:
    """The conversation of a wish; raises RequestError as it did when it was first read."""
    return codec.convert(wish.body, protocol=wish.protocol, thinking_by_default=wish.thinks_by_default)


def watcher_of(job: Job, conversation: Conversation | None, codec: ChatCodec, eos_token_id: int) -> StopWatcher | None:
    """Ends the answer to a job at a stop string, if it has any."""
    if job.stop:
        return TextWatcher(codec.tokenizer, job.stop, eos_token_id)
    if conversation is not None and conversation.parsing_options.stop_sequences:
        return ChatWatcher(codec, conversation, eos_token_id)
    return None
