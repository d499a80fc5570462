package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.DumpLogSegments;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Runs Kafka's dump tool in this process: its exit and its output are caught. */
final class Dump {
    private Dump() {
    }

    private static final class Exited extends RuntimeException {
        private static final long serialVersionUID = 1L;
        final int code;
        final String reason;

        Exited(int code, String reason) {
            super(reason);
            this.code = code;
            this.reason = reason;
        }
    }

    static Map<String, Object> run(JsonNode request) {
        ByteArrayOutputStream outBytes = new ByteArrayOutputStream();
        ByteArrayOutputStream errBytes = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        PrintStream toolOut = new PrintStream(outBytes, false, StandardCharsets.UTF_8);
        PrintStream toolErr = new PrintStream(errBytes, false, StandardCharsets.UTF_8);
        Exit.Procedure leave = (code, reason) -> {
            throw new Exited(code, reason);
        };
        int code = 0;
        System.setOut(toolOut);
        System.setErr(toolErr);
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        try {
            DumpLogSegments.main(Json.list(Json.need(request, "args")).toArray(new String[0]));
        } catch (Exited e) {
            code = e.code;
        } catch (Throwable e) {
            code = 1;
            toolErr.print("Exception in thread \"main\" ");
            e.printStackTrace(toolErr);
        } finally {
            Exit.resetExitProcedure();
            Exit.resetHaltProcedure();
            System.setOut(out);
            System.setErr(err);
        }
        toolOut.flush();
        toolErr.flush();
        return Json.map("code", code, "out", outBytes.toString(StandardCharsets.UTF_8), "err", errBytes.toString(StandardCharsets.UTF_8));
    }
}
